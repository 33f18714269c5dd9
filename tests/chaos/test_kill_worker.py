"""A worker is killed, frozen or replaced in mid-stream: readers get one numbering, one ending."""

import asyncio
import time
from dataclasses import dataclass, field

import pytest

from tests.conftest import PrivateStack
from tests.support.api import JSON, until
from tests.support.chaos.attempts import assert_abandoned, assert_one_stream
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    done,
    finish,
    hang,
    reasoning,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack

RECOVERY_LIMIT = 20
"""Seconds until a response whose worker died is running again or ended (I2)."""


CUT_POINTS: dict[str, tuple[list[Step], int]] = {
    "before any output": ([], 0),
    "in a message": ([text("half")], 1),
    "in the arguments of a call": ([text("Let me see."), call(0, "call_a", "f", '{"a":')], 2),
    "in reasoning": ([reasoning("hm")], 1),
    "after reasoning, in a message": ([reasoning("hm"), text("half", " a ")], 2),
}
"""Where the worker dies -> the output before that, and the number of items it had opened."""
OTHER_RESPONSES = 40


@dataclass
class KilledRun:
    """What clients got from a worker and, after its death, from the next one."""

    staying: dict[str, list[bytes]] = field(default_factory=dict)
    """Frames of readers that stayed connected, by cut point."""
    resuming: dict[str, list[bytes]] = field(default_factory=dict)
    """Frames of readers that disconnected and resumed by number."""
    upstream_calls: dict[str, int] = field(default_factory=dict)
    """Number of calls of the upstream, by cut point."""
    stored: dict[str, JSON] = field(default_factory=dict)
    foreground: list[bytes] = field(default_factory=list)
    helper_text: str = ""
    """The text that the SDK's stream helper returned."""
    others: list[JSON] = field(default_factory=list)
    others_frames: list[list[bytes]] = field(default_factory=list)
    seconds: float = 0
    """Seconds from the kill to the last ending."""


class BusyWorker:
    """Readers of all kinds whose responses run at one worker."""

    def __init__(self, running: Stack, killed_run: KilledRun) -> None:
        self._stack = running
        self._fake = running.fake
        self._run = killed_run
        self._ready = asyncio.Semaphore(0)
        self._killed = asyncio.Event()
        end = [text("new"), call(0, "call_b", "g", "{}"), finish("tool_calls"), usage(), done()]
        self._models = {
            cut: self._fake.script([*first_turn, hang()], end)
            for cut, (first_turn, _) in CUT_POINTS.items()
        }
        self._other_models = [
            self._fake.script([text("half"), hang()], reply(f"whole {number}"))
            for number in range(OTHER_RESPONSES + 2)
        ]

    async def run(self) -> None:
        """Starts all readers, kills the worker, starts another one and waits for all ends."""
        running, run = self._stack, self._run
        create = running.api(1).create_background
        other_ids = await asyncio.gather(*map(create, self._other_models[2:]))
        readers = [asyncio.create_task(self._follow(cut)) for cut in CUT_POINTS]
        readers += [
            asyncio.create_task(self._read_foreground()),
            asyncio.create_task(self._read_with_helper()),
        ]
        for _ in readers:
            await self._ready.acquire()
        models = [*self._models.values(), *self._other_models]
        await until(lambda: all(self._fake.requests_for(model) for model in models), 20)
        running.kill(running.workers[0])
        killed_at = time.monotonic()
        self._killed.set()
        running.spawn_worker()
        await asyncio.gather(*readers)
        run.others = await asyncio.gather(*map(running.api(0).wait_for_end, other_ids))
        run.seconds = time.monotonic() - killed_at
        run.others_frames = [await running.api(1).replay(other_id) for other_id in other_ids]
        run.upstream_calls = {
            cut: len(self._fake.requests_for(model)) for cut, model in self._models.items()
        }

    async def _follow(self, cut: str) -> None:
        """A reader that stays connected, and one that disconnects and resumes by number."""
        deltas, items = len(CUT_POINTS[cut][0]), CUT_POINTS[cut][1]
        first, second = self._stack.api(0), self._stack.api(1)
        response_id = await first.create_background(self._models[cut])
        async with first.follow(response_id) as staying:
            async with second.follow(response_id) as leaving:
                await leaving.until("response.output_item.added" if items else "response.queued")
            while sum(event["type"].endswith(".delta") for event in staying.events) < deltas:
                await staying.next()
            self._ready.release()
            await self._killed.wait()
            async with second.follow(response_id, after=leaving.last_number) as resumed:
                await asyncio.gather(staying.to_end(), resumed.to_end())
        self._run.staying[cut] = staying.frames
        self._run.resuming[cut] = leaving.frames + resumed.frames
        self._run.stored[cut] = await second.get(response_id)

    async def _read_foreground(self) -> None:
        async with self._stack.api(1).post_stream(self._other_models[0]) as stream:
            await stream.until("response.output_text.delta")
            self._ready.release()
            await stream.to_end()
            self._run.foreground = stream.frames

    async def _read_with_helper(self) -> None:
        async with self._stack.openai(0).responses.stream(
            model=self._other_models[1], input="Go.", background=True
        ) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta" and event.delta == "half":
                    self._ready.release()
            self._run.helper_text = (await stream.get_final_response()).output_text


@pytest.fixture(scope="module")
async def killed_run(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> KilledRun:
    """kill -9 of a busy worker, and a new one at once, with the default leases of the promise."""
    killed_run = KilledRun()
    async with stack(
        tmp_path_factory.mktemp("killed-run"), database_server, suite_settings, fake, webs=2
    ) as running:
        await BusyWorker(running, killed_run).run()
    return killed_run


def test_after_kill_9_all_responses_end_in_time(killed_run: KilledRun) -> None:
    assert killed_run.seconds < RECOVERY_LIMIT


@pytest.mark.parametrize("cut", list(CUT_POINTS))
def test_readers_get_one_numbering_and_the_abandoned_item_is_closed(
    killed_run: KilledRun, cut: str
) -> None:
    frames = killed_run.staying[cut]
    events = assert_one_stream(frames)
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["message", "function_call"]
    assert final["output_text"] == "new"
    if items := CUT_POINTS[cut][1]:
        assert_abandoned(events, items=items)
    assert [event["type"] for event in events].count("response.in_progress") == 1
    assert killed_run.resuming[cut] == frames
    assert killed_run.stored[cut] == final
    assert killed_run.upstream_calls[cut] == 2


def test_a_foreground_stream_survives_its_worker(killed_run: KilledRun) -> None:
    events = assert_one_stream(killed_run.foreground)
    assert_abandoned(events, items=1)
    assert events[-1]["response"]["output_text"] == "whole 0"


def test_the_official_stream_helper_survives_a_recovery(killed_run: KilledRun) -> None:
    assert killed_run.helper_text == "whole 1"


def test_all_responses_of_a_dead_worker_are_recovered(killed_run: KilledRun) -> None:
    assert [response["output_text"] for response in killed_run.others] == [
        f"whole {number}" for number in range(2, OTHER_RESPONSES + 2)
    ]
    for frames, response in zip(killed_run.others_frames, killed_run.others, strict=True):
        assert assert_one_stream(frames)[-1]["response"] == response


async def test_a_cancel_ends_a_response_whose_worker_is_dead(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(
        settings={**SHORT_LEASES, "BACKBURNER_WEB__CANCEL_WAIT": "0.5"}
    ) as running:
        model = fake.script([text("half"), hang()], reply("never"))
        response_id = await running.api().create_background(model)
        async with running.api().follow(response_id) as stream:
            await stream.until("response.output_text.delta")
            running.kill(running.workers[0])
            answer = await running.api().cancel(response_id)
            assert answer.status == 200
            running.spawn_worker()
            await stream.to_end()
        assert_one_stream(stream.frames)
        ended = await running.api().get(response_id)
        assert (ended["status"], ended["output_text"]) == ("cancelled", "half")
        assert len(fake.requests_for(model)) == 1


async def test_a_frozen_worker_that_wakes_up_can_write_nothing(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(webs=2, settings=SHORT_LEASES) as running:
        woken = asyncio.Event()
        old_worker_ended = asyncio.Event()
        first_turn = [
            text("old"),
            wait_for(woken),
            text(" words", " that", " come", " too", " late"),
            finish(),
            usage(),
            done(),
        ]
        model = fake.script(
            first_turn,
            [text("new"), wait_for(old_worker_ended), text(" words"), finish(), usage(), done()],
        )
        response_id = await running.api().create_background(model)
        async with running.api(0).follow(response_id) as stream:
            await stream.until("response.output_text.delta")
            frozen = running.workers[0]
            frozen.pause()
            await running.start_worker()
            await stream.until("response.output_text.delta")  # from the new worker
            woken.set()
            await until(lambda: fake.requests_for(model)[0].finished is not None)
            running.workers.remove(frozen)
            frozen.resume()
            await until(lambda: not frozen.running(), 10)
            old_worker_ended.set()
            await stream.to_end()
        assert_abandoned(assert_one_stream(stream.frames), items=1)
        assert stream.final["output_text"] == "new words"
        assert await running.api(1).replay(response_id) == stream.frames


@pytest.mark.long
async def test_a_stopping_worker_hands_its_responses_over(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(
        webs=2, settings={**SHORT_LEASES, "BACKBURNER_WORKER__GRACE": "0.5"}
    ) as running:
        model = fake.script([text("half"), hang()], reply("whole"))
        response_id = await running.api().create_background(model)
        async with (
            running.api(0).follow(response_id) as staying,
            running.api(1).follow(response_id) as other,
        ):
            await staying.until("response.output_text.delta")
            await running.start_worker()
            await running.stop(running.workers[0])
            [first, *_] = fake.requests_for(model)
            assert first.closed_by_client is not None
            await asyncio.gather(staying.to_end(), other.to_end())
        assert_abandoned(assert_one_stream(staying.frames), items=1)
        assert staying.final["output_text"] == "whole"
        assert other.frames == staying.frames
        uuid = response_id.removeprefix("resp_")
        assert (
            await running.value("SELECT crashes FROM responses WHERE id = %s::uuid", uuid) == 0
        ), "a hand-over counted as a death"


async def test_a_stopping_worker_finishes_short_responses(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(
        settings={**SHORT_LEASES, "BACKBURNER_WORKER__GRACE": "10"}
    ) as running:
        released = asyncio.Event()
        model = fake.script(
            [text("one "), wait_for(released), text("go"), finish(), usage(), done()],
            reply("never"),
        )
        async with running.api().post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta")
            stopping = running.workers.pop()
            stopping.request_stop()
            next_model = fake.script(reply("by the next worker"))
            next_id = await running.api().create_background(next_model)
            released.set()
            await stream.to_end()
            await until(lambda: not stopping.running(), 20)
            assert stopping.exit_code() == 0
        assert stream.final["output_text"] == "one go"
        assert len(fake.requests_for(model)) == 1
        await running.start_worker()
        assert (await running.api().wait_for_end(next_id))["output_text"] == "by the next worker"
