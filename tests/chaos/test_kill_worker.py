"""A worker dies, stalls or is replaced in mid-stream: readers see one numbering, one ending, and no trace of whose fault it was."""

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
from tests.support.stack import SHORT_LEASES, Databases, SuiteSettings, stack

PROMISE = 20
"""Seconds within which a response whose worker died is running again or over (I2)."""


CUTS: dict[str, tuple[list[Step], int]] = {
    "before anything was said": ([], 0),
    "in a message": ([text("half")], 1),
    "in the arguments of a call": ([text("Let me see."), call(0, "call_a", "f", '{"a":')], 2),
    "in a thought": ([reasoning("hm")], 1),
    "after a thought, in a message": ([reasoning("hm"), text("half", " a ")], 2),
}
"""Where the worker dies -> what was said before, and how many items that had opened."""
CROWD = 40


@dataclass
class Aftermath:
    """What readers and pollers were told by one worker and, after its death, by the next."""

    staying: dict[str, list[bytes]] = field(default_factory=dict)
    """Those who stayed connected, by cut."""
    resuming: dict[str, list[bytes]] = field(default_factory=dict)
    """Those who had left and came back by number."""
    asked: dict[str, int] = field(default_factory=dict)
    """How often the upstream was asked."""
    stored: dict[str, JSON] = field(default_factory=dict)
    foreground: list[bytes] = field(default_factory=list)
    helper: str = ""
    """What the SDK's stream helper made of it."""
    crowd: list[JSON] = field(default_factory=list)
    crowd_frames: list[list[bytes]] = field(default_factory=list)
    seconds: float = 0
    """From the kill to the last ending."""


@pytest.fixture(scope="module")
async def aftermath(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> Aftermath:
    """One kill -9 of a busy worker, restarted at once, with the default leases, since their sum is the promise."""
    async with stack(
        tmp_path_factory.mktemp("aftermath"), database_server, suite_settings, fake, webs=2
    ) as one:
        told = Aftermath()
        new = [text("new"), call(0, "call_b", "g", "{}"), finish("tool_calls"), usage(), done()]
        models = {cut: fake.script([*before, hang()], new) for cut, (before, _) in CUTS.items()}
        others = [
            fake.script([text("half"), hang()], reply(f"whole {number}"))
            for number in range(CROWD + 2)
        ]
        crowd = await asyncio.gather(*map(one.api(1).create_background, others[2:]))
        ready = asyncio.Semaphore(0)
        killed = asyncio.Event()

        async def follow(cut: str, items: int) -> None:
            response_id = await one.api(0).create_background(models[cut])
            async with one.api(0).follow(response_id) as staying:
                async with one.api(1).follow(response_id) as leaving:
                    await leaving.until(
                        "response.output_item.added" if items else "response.queued"
                    )
                while sum(event["type"].endswith(".delta") for event in staying.events) < len(
                    CUTS[cut][0]
                ):
                    await staying.next()
                ready.release()
                await killed.wait()
                async with one.api(1).follow(response_id, after=leaving.last_number) as coming_back:
                    await asyncio.gather(staying.to_end(), coming_back.to_end())
            told.staying[cut] = staying.frames
            told.resuming[cut] = leaving.frames + coming_back.frames
            told.stored[cut] = await one.api(1).get(response_id)

        async def foreground() -> None:
            async with one.api(1).post_stream(others[0]) as stream:
                await stream.until("response.output_text.delta")
                ready.release()
                await stream.to_end()
                told.foreground = stream.frames

        async def helper() -> None:
            async with one.openai(0).responses.stream(
                model=others[1], input="Go.", background=True
            ) as stream:
                async for event in stream:
                    if event.type == "response.output_text.delta" and event.delta == "half":
                        ready.release()
                told.helper = (await stream.get_final_response()).output_text

        readers = [asyncio.create_task(follow(cut, items)) for cut, (_, items) in CUTS.items()]
        readers += [asyncio.create_task(foreground()), asyncio.create_task(helper())]
        for _ in readers:
            await ready.acquire()
        await until(
            lambda: all(fake.requests_for(model) for model in [*models.values(), *others]), 20
        )
        one.kill(one.workers[0])
        begun = time.monotonic()
        killed.set()
        one.spawn_worker()
        await asyncio.gather(*readers)
        told.crowd = await asyncio.gather(*map(one.api(0).wait_for_end, crowd))
        told.seconds = time.monotonic() - begun
        told.crowd_frames = [await one.api(1).replay(response_id) for response_id in crowd]
        told.asked = {cut: len(fake.requests_for(model)) for cut, model in models.items()}
        return told


def test_after_kill_9_everything_ends_in_time(aftermath: Aftermath) -> None:
    assert aftermath.seconds < PROMISE


@pytest.mark.parametrize("cut", list(CUTS))
def test_readers_see_one_numbering_and_the_abandoned_item_closed(
    aftermath: Aftermath, cut: str
) -> None:
    frames = aftermath.staying[cut]
    events = assert_one_stream(frames)
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["message", "function_call"]
    assert final["output_text"] == "new"
    if items := CUTS[cut][1]:
        assert_abandoned(events, items=items)
    assert [event["type"] for event in events].count("response.in_progress") == 1
    assert aftermath.resuming[cut] == frames
    assert aftermath.stored[cut] == final
    assert aftermath.asked[cut] == 2


def test_a_foreground_stream_survives_its_worker_too(aftermath: Aftermath) -> None:
    events = assert_one_stream(aftermath.foreground)
    assert_abandoned(events, items=1)
    assert events[-1]["response"]["output_text"] == "whole 0"


def test_the_official_stream_helper_survives_a_recovery(aftermath: Aftermath) -> None:
    assert aftermath.helper == "whole 1"


def test_all_the_responses_of_a_dead_worker_are_taken_over(aftermath: Aftermath) -> None:
    assert [response["output_text"] for response in aftermath.crowd] == [
        f"whole {number}" for number in range(2, CROWD + 2)
    ]
    for frames, response in zip(aftermath.crowd_frames, aftermath.crowd, strict=True):
        assert assert_one_stream(frames)[-1]["response"] == response


async def test_a_cancel_ends_a_response_whose_worker_is_dead(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(
        settings={**SHORT_LEASES, "BACKBURNER_WEB__CANCEL_WAIT": "0.5"}
    ) as one:
        model = fake.script([text("half"), hang()], reply("never"))
        response_id = await one.api().create_background(model)
        async with one.api().follow(response_id) as stream:
            await stream.until("response.output_text.delta")
            one.kill(one.workers[0])
            answer = await one.api().cancel(response_id)
            assert answer.status == 200
            one.spawn_worker()
            await stream.to_end()
        assert_one_stream(stream.frames)
        ended = await one.api().get(response_id)
        assert (ended["status"], ended["output_text"]) == ("cancelled", "half")
        assert len(fake.requests_for(model)) == 1


async def test_a_frozen_worker_that_wakes_up_can_do_nothing_any_more(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(webs=2, settings=SHORT_LEASES) as one:
        woken = asyncio.Event()
        told = asyncio.Event()
        old = [
            text("old"),
            wait_for(woken),
            text(" words", " that", " come", " too", " late"),
            finish(),
            usage(),
            done(),
        ]
        model = fake.script(
            old, [text("new"), wait_for(told), text(" words"), finish(), usage(), done()]
        )
        response_id = await one.api().create_background(model)
        async with one.api(0).follow(response_id) as stream:
            await stream.until("response.output_text.delta")
            frozen = one.workers[0]
            frozen.pause()
            await one.start_worker()
            await stream.until("response.output_text.delta")  # the new worker speaks
            woken.set()
            await until(lambda: fake.requests_for(model)[0].finished is not None)
            one.workers.remove(frozen)
            frozen.resume()
            await until(lambda: not frozen.running(), 10)
            told.set()
            await stream.to_end()
        assert_abandoned(assert_one_stream(stream.frames), items=1)
        assert stream.final["output_text"] == "new words"
        assert await one.api(1).replay(response_id) == stream.frames


async def test_a_stopping_worker_hands_its_responses_over(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(
        webs=2, settings={**SHORT_LEASES, "BACKBURNER_WORKER__GRACE": "0.5"}
    ) as one:
        model = fake.script([text("half"), hang()], reply("whole"))
        response_id = await one.api().create_background(model)
        async with (
            one.api(0).follow(response_id) as staying,
            one.api(1).follow(response_id) as other,
        ):
            await staying.until("response.output_text.delta")
            await one.start_worker()
            await one.stop(one.workers[0])
            [first, *_] = fake.requests_for(model)
            assert first.closed_by_client is not None
            await asyncio.gather(staying.to_end(), other.to_end())
        assert_abandoned(assert_one_stream(staying.frames), items=1)
        assert staying.final["output_text"] == "whole"
        assert other.frames == staying.frames
        uuid = response_id.removeprefix("resp_")
        assert await one.value("SELECT deaths FROM responses WHERE id = %s::uuid", uuid) == 0, (
            "a hand-over is no death"
        )


async def test_a_stopping_worker_lets_end_what_ends_by_itself(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(settings={**SHORT_LEASES, "BACKBURNER_WORKER__GRACE": "10"}) as one:
        opened = asyncio.Event()
        model = fake.script(
            [text("one "), wait_for(opened), text("go"), finish(), usage(), done()], reply("never")
        )
        async with one.api().post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta")
            stopping = one.workers.pop()
            stopping.request_stop()
            late = fake.script(reply("by the next worker"))
            waiting = await one.api().create_background(late)
            opened.set()
            await stream.to_end()
            await until(lambda: not stopping.running(), 20)
            assert stopping.exit_code() == 0
        assert stream.final["output_text"] == "one go"
        assert len(fake.requests_for(model)) == 1
        await one.start_worker()
        assert (await one.api().wait_for_end(waiting))["output_text"] == "by the next worker"


async def test_a_response_that_kills_its_workers_fails_in_quarantine(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(settings=SHORT_LEASES, quarantine=True) as one:
        worker, quarantine = one.workers
        model = fake.script([text("boom"), hang()])
        async with one.api().post_stream(model, background=True) as stream:
            for deaths, victim in enumerate([worker, None, quarantine]):
                await until(lambda: len(fake.requests_for(model)) > deaths, 20)  # noqa: B023  # awaited before the next round
                await stream.until("response.output_text.delta")
                one.kill(victim or one.workers[-1])
                await one.start_worker(quarantine=victim is quarantine)
            await stream.to_end()
        assert_one_stream(stream.frames)
        assert stream.final["status"] == "failed"
        assert len(fake.requests_for(model)) == 3
        assert (
            await one.api().wait_for_end(
                await one.api().create_background(fake.script(reply("fine")))
            )
        )["status"] == "completed"
