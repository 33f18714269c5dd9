"""One large batch: processes are killed while it runs, and an interactive client is measured.

The upstream and the client are processes of their own. The client belongs to the project of the
batch, so only the lane of its responses sets them apart. Its background responses have webhooks.
"""

import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openai
import psycopg

from bench.paced_upstream import model as paced_model
from cli.embedded.postgres import Postgres
from cli.embedded.process import free_port
from models.ids import parse_batch_id
from tests.chaos.test_restarts import own_servers
from tests.support.abuse import NeighbourRun, neighbour_process
from tests.support.api import until
from tests.support.batches import line, results, start
from tests.support.chaos.random_kills import RandomKills
from tests.support.chaos.tracebacks import SERVER_TRACEBACKS
from tests.support.fake_upstream import FakeUpstream
from tests.support.memory_limit import MemoryLimit, WatchedProcess
from tests.support.neighbour import MODEL, Measurement, NeighbourArguments
from tests.support.stack import Service, Stack, SuiteSettings
from tests.support.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.webhooks import SEALED, Hooks

PROJECT = "batch"
_CONFIGURATION = """
[upstreams.batch]
base_url = "http://127.0.0.1:{batch_port}/v1"
api_key_env = "BACKBURNER_UPSTREAM__API_KEY"

[upstreams.neighbour]
base_url = "http://127.0.0.1:{neighbour_port}/v1"
api_key_env = "BACKBURNER_UPSTREAM__API_KEY"

[routes]
"*" = "batch"
"{model}" = "neighbour"
"""
_INTERVAL = 0.1
"""Seconds between two requests of the client."""
_LONGEST = 3600.0
"""Seconds after which a batch is given up."""
_DELIVERED_WITHIN = 240.0
"""Seconds after the end of the batch in which all events arrive."""
_ENDED = "('completed', 'failed', 'expired', 'cancelled')"


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What is run."""

    lines: int
    endpoint: str
    seed: int
    pause: float
    """seconds between two kills, on average; 0: nothing is killed"""
    calm: float
    """seconds without faults: before the batch, and while it runs"""


@dataclass(slots=True)
class BatchResult:
    """What happened. Moments are `time.monotonic()`."""

    plan: BatchPlan
    violations: list[str] = field(default_factory=list)
    moments: dict[str, float] = field(default_factory=dict)
    """of the phases' beginnings, in their order; the last one is the end"""
    validated_after: float = 0.0
    """seconds from the create of the batch to its first response"""
    faults: Counter[str] = field(default_factory=Counter)
    measurements: list[Measurement] = field(default_factory=list)
    processes: list[WatchedProcess] = field(default_factory=list)
    events: int = 0
    """tries that the endpoint of the webhooks got"""

    def requests(self, phase: str) -> list[Measurement]:
        """Those of the client that began in a phase."""
        names = list(self.moments)
        began, ended = (self.moments[name] for name in names[names.index(phase) :][:2])
        return [one for one in self.measurements if began <= one.began < ended]


async def run_batch(plan: BatchPlan) -> BatchResult:
    """Runs the batch in a deployment of its own: two web processes, two workers, and a quarantine
    worker."""
    result = BatchResult(plan)
    with tempfile.TemporaryDirectory(prefix="backburner-batch-") as folder:
        async with (
            _deployment(Path(folder)) as (running, postgres, neighbour_port),
            webhook_receiver() as receiver,
        ):
            await _Campaign(plan, result, running, postgres, receiver, neighbour_port).run()
    return result


@asynccontextmanager
async def _deployment(folder: Path) -> AsyncIterator[tuple[Stack, Postgres, int]]:
    """The stack, its PostgreSQL, and the port of the client's upstream."""
    batch_port, neighbour_port = free_port(), free_port()
    configuration = folder / "backburner.toml"
    configuration.write_text(
        _CONFIGURATION.format(batch_port=batch_port, neighbour_port=neighbour_port, model=MODEL)
    )
    settings = {"BACKBURNER_CONFIG": str(configuration), **SEALED}
    async with (
        FakeUpstream() as unused,
        own_servers(
            folder,
            SuiteSettings(),
            unused,
            webs=2,
            workers=2,
            # For responses whose workers were killed twice.
            quarantine=True,
            settings=settings,
            allowed_tracebacks=SERVER_TRACEBACKS,
        ) as (running, postgres),
    ):
        upstream = Service(
            "upstream",
            folder / "upstream.log",
            "bench.paced_upstream",
            str(batch_port),
            environment=running.environment(),
        )
        upstream.launch()
        try:
            yield running, postgres, neighbour_port
        finally:
            upstream.kill()


class _Campaign:
    def __init__(
        self,
        plan: BatchPlan,
        result: BatchResult,
        running: Stack,
        postgres: Postgres,
        receiver: WebhookReceiver,
        neighbour_port: int,
    ) -> None:
        self._plan = plan
        self._result = result
        self._running = running
        self._postgres = postgres
        self._receiver = receiver
        self._neighbour_port = neighbour_port
        self._memory = MemoryLimit()
        self._random = random.Random(plan.seed)
        self._kills = RandomKills(running, postgres, self._random)
        self._names = {f"request-{number}" for number in range(plan.lines)}

    async def run(self) -> None:
        """Fills the result."""
        hooks = await asyncio.to_thread(Hooks, self._running, PROJECT)
        await hooks.create(self._receiver)
        keys = self._running.folder / "neighbour-keys"
        keys.write_text(f"{hooks.api.key}\n")
        self._memory.start()
        self._watch()
        arguments = NeighbourArguments(
            [f"http://127.0.0.1:{web.port}/v1" for web in self._running.webs],
            str(keys),
            self._neighbour_port,
            str(self._running.folder / "neighbour.jsonl"),
            interval=_INTERVAL,
            notes_first_token=True,
        )
        client = self._running.openai(key=hooks.api.key)
        try:
            async with neighbour_process(self._running, self._memory, arguments) as neighbour:
                batch = await self._run_phases(client, neighbour)
            await self._check_results(client, batch)
            await self._check_events(batch)
        finally:
            self._memory.stop()
        self._result.faults = self._kills.faults
        self._result.processes = self._memory.processes
        self._result.measurements = neighbour.measurements()

    async def _run_phases(self, client: openai.AsyncOpenAI, neighbour: NeighbourRun) -> str:
        """Runs the batch to its end; returns its id."""
        self._begin("no batch")
        await asyncio.sleep(self._plan.calm)
        self._begin("validation")
        created = time.monotonic()
        batch = await start(client, self._lines(), endpoint=self._plan.endpoint)
        await self._until(batch.id, "expanded > 0")
        self._result.validated_after = time.monotonic() - created
        self._begin("batch")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._plan.calm if self._plan.pause else None):
                await self._until(batch.id, f"status IN {_ENDED}")
        self._begin("batch and faults")
        if self._plan.pause:
            await self._break_until_ended(batch.id)
        self._begin("after the batch")
        await asyncio.sleep(self._plan.calm)
        self._begin("end")
        assert neighbour.measurements()
        return batch.id

    def _begin(self, phase: str) -> None:
        self._result.moments[phase] = time.monotonic()

    def _lines(self) -> list[dict[str, object]]:
        model = paced_model(5)
        return [
            line(name, model, url=self._plan.endpoint, body=self._body(model, name))
            for name in sorted(self._names)
        ]

    def _body(self, model: str, name: str) -> dict[str, object]:
        if self._plan.endpoint == "/v1/chat/completions":
            return {"model": model, "messages": [{"role": "user", "content": f"Say {name}."}]}
        return {"model": model, "input": f"Say {name}."}

    # --- faults ---

    async def _break_until_ended(self, batch: str) -> None:
        """Kills processes at random, and restarts PostgreSQL after a third and two thirds."""
        restarts = [self._plan.lines * 2 // 3, self._plan.lines // 3]
        ended = asyncio.create_task(self._until(batch, f"status IN {_ENDED}"))
        while not ended.done():
            await asyncio.wait({ended}, timeout=self._random.expovariate(1 / self._plan.pause))
            if ended.done():
                break
            if restarts and await self._collected(batch) >= restarts[-1]:
                restarts.pop()
                await self._kills.restart_postgres(crash=len(restarts) == 1)
            else:
                await self._kills.kill()
            self._watch()
        await ended
        while restarts:
            restarts.pop()
            self._result.violations.append("PostgreSQL was not restarted twice: too few lines")

    def _watch(self) -> None:
        """Measures the processes that were started since the last call."""
        known = {process.pid for process in self._memory.processes}
        if self._postgres.pid not in known:
            self._memory.watch(
                WatchedProcess("postgres", self._postgres.pid, None, works_in="children")
            )
        for process in [*self._running.webs, *self._running.workers]:
            if process.pid not in known:
                watched = WatchedProcess(process.name, process.pid, None)
                if process.port is None:
                    watched.works_in = "threads"
                self._memory.watch(watched)

    async def _until(self, batch: str, condition: str) -> None:
        identity = parse_batch_id(batch)

        async def holds() -> bool:
            # PostgreSQL may be away.
            with contextlib.suppress(psycopg.Error):
                query = f"SELECT {condition} FROM batches WHERE id = %s"
                return bool(await self._running.value(query, identity))
            return False

        await until(holds, within=_LONGEST, every=0.2)

    async def _collected(self, batch: str) -> int:
        query = "SELECT completed + failed FROM batches WHERE id = %s"
        found: int = await self._running.value(query, parse_batch_id(batch))
        return found

    # --- the promises ---

    async def _check_results(self, client: openai.AsyncOpenAI, batch: str) -> None:
        """Each request has one result."""
        found = self._result.violations
        final = await client.batches.retrieve(batch)
        if final.status != "completed":
            found.append(f"the batch is {final.status}: {final.errors}")
        output = await results(client, final.output_file_id)
        errors = await results(client, final.error_file_id)
        if both := sorted(output.keys() & errors.keys()):
            found.append(f"{len(both)} requests are in both files: {both[:3]}")
        if missing := sorted(self._names - output.keys() - errors.keys()):
            found.append(f"{len(missing)} requests have no result: {missing[:3]}")
        if errors:
            found.append(
                f"{len(errors)} requests failed: {json.dumps(next(iter(errors.values())))}"
            )
        counts = final.request_counts
        shown = None if counts is None else (counts.total, counts.completed, counts.failed)
        if shown != (self._plan.lines, len(output), len(errors)):
            found.append(f"request_counts are {shown}: {len(output)} and {len(errors)} in files")
        if broken := [name for name, one in output.items() if not self._is_answer(one)]:
            found.append(f"{len(broken)} results are not as they should be: {broken[:3]}")

    def _is_answer(self, one: dict[str, dict[str, dict[str, object]]]) -> bool:
        body = one["response"]["body"]
        match self._plan.endpoint:
            case "/v1/responses":
                return body["status"] == "completed"
            case "/v1/chat/completions":
                return bool(body["choices"])
            case _:
                return bool(body["data"])

    async def _check_events(self, batch: str) -> None:
        """Each event was delivered, each time with the same id."""
        project = "(SELECT id FROM projects WHERE name = %s)"
        expected = await self._running.value(
            "SELECT array_agg('resp_' || replace(id::text, '-', '')) FROM responses "
            f"WHERE project_id = {project} AND background AND lane <> 3 AND status IN {_ENDED} "
            # Its client got 503.
            "AND reason IS DISTINCT FROM 'create_refused'",
            PROJECT,
        )
        wanted = {batch, *expected}

        def are_delivered() -> bool:
            return wanted <= self._ids().keys()

        with contextlib.suppress(AssertionError):
            await until(are_delivered, within=_DELIVERED_WITHIN, every=0.5)
        ids = self._ids()
        self._result.events = len(self._receiver.hooks)
        if missing := sorted(wanted - ids.keys()):
            self._result.violations.append(
                f"{len(missing)} of {len(wanted)} events did not arrive: {missing[:3]}"
            )
        if changed := [name for name in wanted if len(ids.get(name, ())) > 1]:
            self._result.violations.append(f"{len(changed)} events have two ids: {changed[:3]}")

    def _ids(self) -> dict[str, set[str]]:
        """By what an event is about: the ids that it came with."""
        found: dict[str, set[str]] = {}
        for hook in self._receiver.hooks:
            found.setdefault(json.loads(hook.body)["data"]["id"], set()).add(hook.id)
        return found
