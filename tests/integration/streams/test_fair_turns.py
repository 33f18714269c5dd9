"""Whose response gets the next slot, counted by the order of the calls that the upstream gets."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from tests.conftest import PrivateStack
from tests.integration.operator.test_operations import command_facts
from tests.support import keys
from tests.support.api import Api, until
from tests.support.fake_upstream import (
    FakeUpstream,
)
from tests.support.held_calls import HeldCalls
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack

_numbers = count()
STREAMS = 2
SLOTS = 3
"""Of a worker with so few streams, none of them reserved."""
STREAMS_OF_BOTH_KINDS, SLOTS_OF_BOTH_KINDS = 9, 10
"""Of a worker that reserves one slot for foreground responses, and one for background ones."""


@pytest.fixture(scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """One worker with three slots, whose sweeps find lost wake-ups soon."""
    settings = {"BACKBURNER_LEASE__SWEEP": "0.3", "BACKBURNER_LEASE__ENQUEUE_INTERVAL": "1"}
    folder = tmp_path_factory.mktemp("turns")
    async with stack(
        folder, database_server, suite_settings, fake, streams=STREAMS, settings=settings
    ) as one:
        yield one


@pytest.fixture
async def turns(running: Stack, fake: FakeUpstream) -> AsyncIterator[HeldCalls]:
    turns = HeldCalls(fake, "turns-")
    yield turns
    turns.end_all()
    still_open = "SELECT count(*) = 0 FROM responses WHERE status IN ('queued', 'in_progress')"
    await until(lambda: running.value(still_open), 30)


@pytest.fixture
def other(running: Stack) -> Api:
    """A client with a key of another project."""
    return running.api(key=keys.create(running.dsn, f"other {next(_numbers)}"))


async def _create(api: Api, model: str, number: int, **fields: Any) -> list[str]:
    """Ids of new background responses."""
    return await asyncio.gather(*(api.create_background(model, **fields) for _ in range(number)))


async def test_one_project_with_hundreds_of_responses_delays_another_by_one_slot(
    running: Stack, turns: HeldCalls, other: Api
) -> None:
    many, few = turns.model("many"), turns.model("few")
    await _create(running.api(), many, 200)
    await turns.begun(SLOTS)
    await _create(other, few, 1)
    await turns.until_begun(few, 1)
    # It has not more than others either: the next slots belong to those who wait.
    assert [await turns.next() for _ in range(SLOTS)] == [many] * SLOTS
    begun = len(turns.order)
    await _create(other, few, 20)
    while len(turns.order) < begun + 12:
        await turns.next()
    order = turns.order[begun : begun + 12]
    assert order.count(few) in (6, 7), order


async def test_a_project_with_nothing_running_waits_for_no_slot(
    running: Stack, turns: HeldCalls, other: Api
) -> None:
    many, second, third = (turns.model(name) for name in ("many", "second", "third"))
    await _create(running.api(), many, 100)
    await turns.begun(SLOTS)
    await _create(other, second, 20)
    await until(lambda: second in turns.order)
    another = running.api(key=keys.create(running.dsn, f"other {next(_numbers)}"))
    async with asyncio.timeout(4), asyncio.TaskGroup() as group:
        waits = group.create_task(another.create(third))
        await until(lambda: third in turns.order)
        turns.end_all()
        await waits


async def test_a_response_in_line_shows_its_position_and_when_it_is_expected_to_start(
    running: Stack, turns: HeldCalls
) -> None:
    many = turns.model("many")
    await _create(running.api(), many, SLOTS)
    await turns.begun(SLOTS)
    waiting = [await running.api().create_background(many) for _ in range(12)]
    client = running.openai()

    async def progress(response_id: str) -> Any:
        response = await client.responses.retrieve(response_id)
        return (response.model_extra or {})["progress"]

    async def wait(response_id: str) -> Any:
        return (await progress(response_id))["waits_for"]

    async def has_position(number: int) -> bool:
        found = await wait(waiting[-1])
        return bool((found["type"], found["position"]) == ("slot", number))

    await until(lambda: has_position(12))
    # Others of the process have looked at the line too, so all positions are of one second.
    positions = [(await wait(each))["position"] for each in waiting]
    assert positions == list(range(1, 13))
    assert (await progress(waiting[0]))["attempts"] == 0
    for _ in range(6):
        await turns.next()
    started = time.time()

    async def is_expected() -> Any:
        found = await wait(waiting[-1])
        return found["expected_start_at"] and found

    found = await until(is_expected)
    assert 1 <= found["position"] <= 7
    assert started - 1 <= found["expected_start_at"] <= started + 120
    raw = await client.responses.with_raw_response.retrieve(waiting[-1])
    assert 1000 <= int(raw.headers["openai-poll-after-ms"]) <= 60_000


async def test_a_project_whose_clients_wait_for_hundreds_of_answers_delays_another_by_one_slot(
    running: Stack, turns: HeldCalls, other: Api
) -> None:
    many, few = turns.model("many"), turns.model("few")
    waiting = [asyncio.create_task(running.api().create(many)) for _ in range(60)]
    await turns.begun(SLOTS)
    queued = "SELECT count(*) = 60 FROM responses WHERE model = %s"
    await until(lambda: running.value(queued, many))
    waiting.append(asyncio.create_task(other.create(few)))
    await until(lambda: running.value("SELECT count(*) = 1 FROM responses WHERE model = %s", few))
    await turns.until_begun(few, 1)
    turns.end_all()
    await asyncio.gather(*waiting)


@asynccontextmanager
async def _waiting_clients(api: Api, model: str, number: int) -> AsyncIterator[None]:
    """So many clients, each of which sends its next foreground request when one is answered."""

    async def wait_for_answers() -> None:
        while True:
            await api.create(model)

    clients = [asyncio.create_task(wait_for_answers()) for _ in range(number)]
    try:
        yield
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def test_clients_that_always_wait_for_answers_delay_a_background_response_by_few_slots(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(streams=STREAMS_OF_BOTH_KINDS) as running:
        turns, other = HeldCalls(fake, "turns-"), running.api(key=keys.create(running.dsn, "other"))
        many, few = turns.model("many"), turns.model("few")
        async with _waiting_clients(running.api(), many, 20):
            await turns.begun(SLOTS_OF_BOTH_KINDS)
            await until(lambda: running.value("SELECT count(*) = 20 FROM responses"))
            await _create(other, few, 3)
            await turns.until_begun(few, 3)
            # It has its slot, and the clients have the others.
            while turns.next_to_end != few:
                assert await turns.next() == many
            # Its next one follows, although the clients have sent their requests earlier.
            assert few in [await turns.next() for _ in range(3)]
        turns.end_all()
        completed = "SELECT count(*) = 3 FROM responses WHERE status = 'completed' AND model = %s"
        await until(lambda: running.value(completed, few))


async def test_a_lower_service_tier_waits_behind_a_higher_one_but_not_for_ever(
    running: Stack, turns: HeldCalls
) -> None:
    api = running.api()
    await _create(api, turns.model("first"), SLOTS)
    await turns.begun(SLOTS)
    models = {}
    for tier in ("flex", "default", "priority", "aged"):
        models[tier] = turns.model(tier)
        sent = "flex" if tier == "aged" else tier
        [created] = await _create(api, models[tier], 1, service_tier=sent)
        assert (await api.get(created))["service_tier"] == sent
    await running.value(
        "UPDATE responses SET enqueued_at = now() - interval '11 minutes' WHERE model = %s"
        " RETURNING 1",
        models["aged"],
    )
    order = [await turns.next() for _ in models]
    assert order == [models[tier] for tier in ("priority", "aged", "default", "flex")]


async def test_priority_takes_no_slots_from_a_project_that_has_fewer(
    running: Stack, turns: HeldCalls, other: Api
) -> None:
    many, few = turns.model("many"), turns.model("few")
    await _create(running.api(), many, 30, service_tier="priority")
    await turns.begun(SLOTS)
    await _create(other, few, 1)
    await turns.until_begun(few, 1)


async def test_turns_stay_fair_without_redis(running: Stack, turns: HeldCalls, other: Api) -> None:
    many, few = turns.model("many"), turns.model("few")
    await _create(running.api(), many, 50)
    await turns.begun(SLOTS)
    await _create(other, few, 2)
    redis = running.redis()
    await redis.flushall()
    await redis.aclose()
    # A sweep takes no response whose wake-up may still be on its way.
    await running.value(
        "UPDATE responses SET enqueued_at = enqueued_at - interval '1 minute'"
        " WHERE status = 'queued' RETURNING 1"
    )
    await turns.until_begun(few, 2)


async def test_a_lost_wake_up_of_a_background_response_is_found_while_clients_take_all_slots(
    running: Stack, turns: HeldCalls, other: Api
) -> None:
    many, few = turns.model("many"), turns.model("few")
    redis = running.redis()

    async def reads_nothing() -> bool:
        return bool((await redis.info("clients"))["blocked_clients"] == 0)

    async with _waiting_clients(running.api(), many, 3 * SLOTS):
        await turns.begun(SLOTS)
        await until(reads_nothing)
        [lost] = await _create(other, few, 1)
        await until(lambda: redis.llen("background"))
        await redis.delete("background")
        await redis.aclose()
        # A sweep takes no response whose wake-up may still be on its way.
        await running.value(
            "UPDATE responses SET enqueued_at = enqueued_at - interval '1 minute', confirmed = true"
            " WHERE id = %s::uuid RETURNING 1",
            lost.removeprefix("resp_"),
        )
        async with asyncio.timeout(20):
            while few not in turns.order:
                await turns.next()
        turns.end_all()
    assert (await other.wait_for_end(lost))["status"] == "completed"


async def _move(running: Stack, model: str, **columns: str) -> None:
    """Sets times of the responses of this model. `columns`: name -> expression."""
    changes = ", ".join(f"{name} = {value}" for name, value in columns.items())
    await running.value(f"UPDATE responses SET {changes} WHERE model = %s RETURNING 1", model)


async def test_windows_wait_behind_all_others_the_one_that_ends_first_before_the_next(
    running: Stack, turns: HeldCalls
) -> None:
    api = running.api()
    await _create(api, turns.model("first"), SLOTS)
    await turns.begun(SLOTS)
    models = {}
    for name in ("urgent", "batch", "8h", "2h", "flex", "soonest"):
        models[name] = turns.model(name)
        window = {"urgent": "8h", "batch": "8h", "flex": "soonest"}.get(name, name)
        tier = {"service_tier": "flex"} if name == "flex" else {}
        options = {"completion_window": window}
        await _create(api, models[name], 1, background_options=options, **tier)
    await _move(running, models["batch"], lane="3")
    # As when half of its window is over.
    await _move(running, models["urgent"], urgent_at="now()")
    order = [await turns.next() for _ in models]
    assert order == [models[name] for name in ("urgent", "soonest", "flex", "2h", "8h", "batch")]


async def test_projects_take_turns_in_a_window(
    running: Stack, turns: HeldCalls, other: Api
) -> None:
    many, few = turns.model("many"), turns.model("few")
    await _create(other, turns.model("first"), 1)
    await turns.begun(1)
    await _create(running.api(), turns.model("first"), SLOTS - 1)
    await turns.begun(SLOTS)
    options = {"completion_window": "8h"}
    await _create(running.api(), many, 12, background_options=options)
    await _create(other, few, 3, background_options=options)
    order = [await turns.next() for _ in range(8)]
    assert order.count(few) == 3, order


async def test_a_follow_up_waits_before_strangers_that_came_a_little_earlier(
    running: Stack, turns: HeldCalls
) -> None:
    api = running.api()
    thread = {"completion_window": "2h", "continuation_id": "thread"}
    names = ("warm", "old", "cold", "stranger", "new", "again", "last")
    models = {name: turns.model(name) for name in names}
    await _create(api, models["warm"], SLOTS, background_options=thread)
    await turns.begun(SLOTS)
    for name in ("old", "cold", "stranger", "new", "again"):
        options = {"completion_window": "2h", "continuation_id": name}
        in_thread = name in ("new", "again")
        await _create(api, models[name], 1, background_options=thread if in_thread else options)
    # More than the lead (BACKBURNER_LINE__CONTINUATION_LEAD): nobody is passed for ever.
    await _move(running, models["old"], enqueued_at="enqueued_at - interval '11 minutes'")
    # What waits moves forward too, once one that it follows begins.
    cold = {"completion_window": "2h", "continuation_id": "cold"}
    await _create(api, models["last"], 1, background_options=cold)
    order = [await turns.next() for _ in range(6)]
    expected = ("old", "new", "again", "cold", "last", "stranger")
    assert order == [models[name] for name in expected]


async def test_a_missed_window_is_counted_and_shown(
    running: Stack, turns: HeldCalls, other: Api
) -> None:
    await _create(running.api(), turns.model("first"), SLOTS)
    await turns.begun(SLOTS)
    missed, met = turns.model("missed"), turns.model("met")
    options = {"completion_window": "2h", "continuation_id": "of the night"}
    [late] = await _create(running.api(), missed, 1, background_options=options)
    await _create(running.api(), met, 1, background_options=options)
    await _move(running, missed, window_ends_at="now() - interval '2 seconds'")

    async def is_overdue() -> bool:
        return 'backburner_windows_overdue{window="2h"} 1.0' in await _metrics(running)

    await until(is_overdue, 20)
    listed = await command_facts(running, "responses", "list", "--missed", "--since", "1h")
    assert [each["id"] for each in listed["responses"]] == [late]
    [row] = listed["responses"]
    assert (row["window"], row["missed_window"]) == ("2h", True)
    turns.end_all()
    assert (await running.api().wait_for_end(late))["background_options"] == options
    listed = await command_facts(
        running, "responses", "list", "--window", "2h", "--continuation", "of the night"
    )
    assert {(each["model"], each["missed_window"]) for each in listed["responses"]} == {
        (missed, True),
        (met, False),
    }


async def _metrics(running: Stack) -> str:
    async with running.session.get(f"http://127.0.0.1:{running.webs[0].port}/metrics") as answer:
        return await answer.text()


async def test_the_order_of_windows_outlives_all_workers(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(streams=STREAMS, settings=SHORT_LEASES) as running:
        turns, api = HeldCalls(fake, "turns-"), running.api()
        models = {name: turns.model(name) for name in ("first", "8h", "2h", "soonest", "urgent")}
        await _create(api, models["first"], 4 * SLOTS)
        await turns.begun(SLOTS)
        for name in ("8h", "2h", "urgent", "soonest"):
            options = {"completion_window": "8h" if name == "urgent" else name}
            await _create(api, models[name], 1, background_options=options)
        await _move(running, models["urgent"], urgent_at="now()")
        running.kill(running.workers[0])
        turns.drop()
        begun = len(turns.order)
        await running.start_worker(streams=STREAMS)
        await until(lambda: len(turns.order) >= begun + SLOTS)
        while not set(models.values()) <= set(turns.order):
            await turns.next()
        order = [each for each in turns.order if each != models["first"]]
        assert order == [models[name] for name in ("urgent", "soonest", "2h", "8h")]
        turns.end_all()
