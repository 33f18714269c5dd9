"""A response that kills its workers fails, and only it: the others that ran beside it complete."""

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from models.lifecycle import CRASHES_ALONE, CRASHES_FINAL, LARGEST_GROUP, QUARANTINE_THRESHOLD
from tests.conftest import PrivateStack
from tests.support.api import JSON, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.fake_upstream import (
    Exchange,
    FakeUpstream,
    Step,
    UpstreamRequest,
    hang,
    reply,
    text,
    wait_for,
)
from tests.support.stack import SHORT_LEASES, Stack

INNOCENTS = 24
_CRASHED = "UPDATE responses SET status = 'in_progress', crashes = %s"
"""As if its workers had crashed."""


@dataclass
class Killer:
    """Kills the workers that ask for a poisoned model, and starts a successor for each."""

    running: Stack
    victims: list[str] = field(default_factory=list)
    """Names of the killed processes, in order."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def poison(self, seconds: float = 0) -> str:
        """A model whose answer kills the worker that reads it, `seconds` after its first word."""
        return self.running.fake.script([text("boom"), self._kill_after(seconds)])

    def innocent(self, answer: list[Step]) -> str:
        """A model that answers only in quarantine: it runs at each crash before that."""
        name = f"innocent-{next(self._numbers)}"

        def decide(_: UpstreamRequest) -> list[Step]:
            is_quarantined = len(self.victims) >= QUARANTINE_THRESHOLD
            return answer if is_quarantined else [text("half"), hang()]

        self.running.fake.decide(name, decide)
        return name

    def _kill_after(self, seconds: float) -> Step:
        async def step(exchange: Exchange) -> None:
            await asyncio.sleep(seconds)
            name = exchange.request.headers["authorization"].rpartition("/")[2]
            for worker in list(self.running.workers):
                if worker.name == name:
                    self.running.kill(worker)
                    self.victims.append(name)
                    self.running.spawn_worker(quarantine=name.startswith("quarantine"))
            await exchange.wait_closed()

        return step

    @property
    def kinds(self) -> list[str]:
        """The kinds of the killed processes, in order."""
        return [name.rpartition("-")[0] for name in self.victims]


async def run_beside(
    running: Stack, poison: str, innocents: list[str], within: float
) -> tuple[JSON, list[JSON]]:
    """Creates the poisoned response and the others; returns them when all have ended."""
    api = running.api()
    poison_id = await api.create_background(poison)
    ids = await asyncio.gather(*map(api.create_background, innocents))
    poisoned, *ended = await asyncio.gather(
        *(api.wait_for_end(name, within=within) for name in [poison_id, *ids])
    )
    assert_one_stream(await api.replay(poison_id))
    return poisoned, ended


def late_reply(word: str, seconds: float) -> list[Step]:
    """An answer that takes some time."""
    return [text("half "), *reply(word, word, gap=seconds / 2)]


@pytest.mark.long
async def test_one_response_that_kills_its_workers_fails_and_those_beside_it_complete(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """The innocents take long enough to be running at each of the first kills."""
    async with private_stack(settings=SHORT_LEASES, quarantine=True, signed=True) as running:
        killer = Killer(running)
        innocents = [killer.innocent(late_reply("whole", 2)) for _ in range(INNOCENTS)]
        started = time.monotonic()
        poisoned, ended = await run_beside(running, killer.poison(0.5), innocents, within=110)
        print(f"{INNOCENTS} innocents and a poison ended after {time.monotonic() - started:.1f} s")
        assert (poisoned["status"], poisoned["error"]["code"]) == ("failed", "server_error")
        assert {response["status"] for response in ended} == {"completed"}
        expected = ["worker"] * QUARANTINE_THRESHOLD
        expected += ["quarantine"] * (CRASHES_ALONE + 1 - QUARANTINE_THRESHOLD)
        assert killer.kinds == expected


@pytest.mark.long
@pytest.mark.timeout(300)  # at least nine probations, one after another
async def test_a_response_that_kills_its_workers_late_fails_after_a_bounded_number_of_kills(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """It survives the probation each time, and others wait for its place."""
    settings = {**SHORT_LEASES, "BACKBURNER_WORKER__PROBATION": "1"}
    async with private_stack(settings=settings, quarantine=True, signed=True) as running:
        killer = Killer(running)
        innocents = [killer.innocent(late_reply("whole", 5)) for _ in range(INNOCENTS)]
        poisoned, ended = await run_beside(running, killer.poison(3), innocents, within=240)
        assert poisoned["status"] == "failed"
        assert {response["status"] for response in ended} == {"completed"}
        assert killer.kinds.count("worker") == QUARANTINE_THRESHOLD
        assert CRASHES_ALONE < len(killer.kinds) <= CRASHES_FINAL + 1


@pytest.mark.long
async def test_suspects_run_in_groups_and_one_that_survived_makes_room(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {**SHORT_LEASES, "BACKBURNER_WORKER__PROBATION": "1"}
    async with private_stack(workers=0, settings=settings) as running:
        released = asyncio.Event()
        slow: list[Step] = [text("half "), wait_for(released), *reply("whole")]
        models = [fake.script(slow) for _ in range(INNOCENTS)]
        ids = await asyncio.gather(*map(running.api().create_background, models))
        await execute(running, _CRASHED, QUARANTINE_THRESHOLD)
        await running.start_worker(quarantine=True)

        await until(lambda: all(map(fake.requests_for, models)), 20)
        claimed = (
            "SELECT array_agg(extract(epoch FROM claimed_at) ORDER BY claimed_at) FROM attempts"
        )
        moments = await running.value(claimed)
        assert moments[LARGEST_GROUP] - moments[0] >= 1, "its place is free after the probation"
        released.set()
        ended = await asyncio.gather(*map(running.api().wait_for_end, ids))
        assert {response["status"] for response in ended} == {"completed"}


async def test_a_suspect_with_many_crashes_runs_alone_and_its_own_crash_fails_it(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """An innocent has as many crashes as the poison: it waits, runs alone too, and completes."""
    settings = {**SHORT_LEASES, "BACKBURNER_WORKER__PROBATION": "30"}
    async with private_stack(workers=0, settings=settings, signed=True) as running:
        killer = Killer(running)
        innocent, other = fake.script(late_reply("whole", 1)), fake.script(late_reply("other", 1))
        poison = killer.poison(0.5)
        api = running.api()
        ids = [await api.create_background(model) for model in (poison, innocent, other)]
        await execute(running, _CRASHED, CRASHES_ALONE)
        await execute(
            running, "UPDATE responses SET crashes = %s WHERE model = %s", CRASHES_ALONE - 1, other
        )
        await running.start_worker(quarantine=True)
        ended = [await api.wait_for_end(name) for name in ids]
        assert [response["status"] for response in ended] == ["failed", "completed", "completed"]
        assert killer.kinds == ["quarantine"]
        assert [len(fake.requests_for(model)) for model in (poison, innocent, other)] == [1, 1, 1]


async def execute(running: Stack, statement: str, *values: Any) -> None:
    """Changes rows of the stack's database."""
    await running.value(f"{statement} RETURNING 1", *values)
