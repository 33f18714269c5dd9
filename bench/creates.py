"""How many background responses are accepted while no worker uses the cores."""

from collections.abc import AsyncIterator
from pathlib import Path

from bench.figures import Goal, Row
from bench.load import Load
from bench.paced_upstream import model
from bench.profiling import Profiler
from bench.rates import repeat_for
from bench.short_responses import background
from bench.system import side_by_side


async def run(folder: Path, load: Load, profiler: Profiler) -> AsyncIterator[Row]:
    """Creates a second; the deployment has no worker."""
    async with side_by_side(folder, workers=False) as systems:
        for system in (systems.raw, systems.ours):
            await repeat_for(background(system, model(1)), 0.5, load.concurrency)
        raw = await repeat_for(
            background(systems.raw, model(1)), load.seconds / 2, load.concurrency
        )
        with profiler.recording("creates", systems.ours.pids):
            ours = await repeat_for(
                background(systems.ours, model(1)), load.seconds / 2, load.concurrency
            )
    yield Row(
        f"background creates accepted, c={load.concurrency}, no worker",
        ours,
        "/s",
        Goal(0.6, is_minimum=True, of_ratio=True),
        raw,
    )
