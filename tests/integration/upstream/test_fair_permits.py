"""Whose call an upstream at its `concurrency` gets next, counted by the order of its requests."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest

from models.console_links import LOGIN_PATH, create_link
from models.redis.upstream_states import read_states
from tests.support import keys
from tests.support.api import Api, until
from tests.support.console import console_user
from tests.support.fake_upstream import FakeUpstream, reply, status
from tests.support.held_calls import HeldCalls
from tests.support.stack import Databases, Stack, SuiteSettings, stack
from tests.support.upstream_faults import waited_for

_numbers = count()
PERMITS = 2


@pytest.fixture
async def calls(fake: FakeUpstream) -> AsyncIterator[HeldCalls]:
    calls = HeldCalls(fake)
    yield calls
    calls.end_all()


@pytest.fixture(scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """One worker with many slots, and upstreams that are called twice at a time: one for which
    calls wait as long as a test runs, and one for which they hardly wait (models `brief-…`)."""
    settings = {
        "BACKBURNER_ROUTES": '{"brief-*": "brief", "*": "default"}',
        "BACKBURNER_UPSTREAMS__BRIEF__BASE_URL": fake.base_url,
        "BACKBURNER_UPSTREAMS__BRIEF__CONCURRENCY": str(PERMITS),
        "BACKBURNER_UPSTREAMS__BRIEF__WAIT": "0.2",
        "BACKBURNER_UPSTREAM__MAX_RETRIES": "0",
        "BACKBURNER_UPSTREAM__CONCURRENCY": str(PERMITS),
        "BACKBURNER_UPSTREAM__WAIT": "60",
        "BACKBURNER_LEASE__SWEEP": "0.3",
    }
    folder = tmp_path_factory.mktemp("permits")
    async with stack(
        folder, database_server, suite_settings, fake, streams=64, settings=settings
    ) as one:
        yield one


@pytest.fixture
def other(running: Stack) -> Api:
    """A client with a key of another project."""
    return running.api(key=keys.create(running.dsn, f"other {next(_numbers)}"))


async def _are_waiting(running: Stack, number: int) -> None:
    """Waits until the worker has said that so many calls wait for a permit of the upstream."""
    worker = await running.value("SELECT worker FROM responses WHERE worker IS NOT NULL LIMIT 1")
    async with running.redis() as redis:

        async def waiting() -> tuple[int, ...]:
            [states] = await read_states(redis, [worker]) or [()]
            return tuple(state.waiting for state in states if state.name == "default")

        async def is_reached() -> bool:
            return await waiting() == (number,)

        await until(is_reached, 30)


async def test_a_flood_of_one_project_delays_calls_of_another_by_a_few(
    running: Stack, calls: HeldCalls, other: Api
) -> None:
    api, many = running.api(), calls.model("many")
    for _ in range(20):
        await api.create_background(many)
    await calls.begun(PERMITS)
    waiting = [asyncio.create_task(api.create(many)) for _ in range(20)]
    foreground, background = calls.model("foreground"), calls.model("background")
    waiting.append(asyncio.create_task(other.create(foreground)))
    await other.create_background(background)
    # Of background calls of one project only as many wait as can run.
    await _are_waiting(running, 20 + PERMITS + 2)
    for _ in range(10):
        await calls.next()
    # At most one foreground call of the flood goes before the foreground call, and a background
    # call of the flood with three foreground calls before that of the other project.
    assert foreground in calls.order[PERMITS : PERMITS + 4], calls.order
    assert background in calls.order, calls.order
    calls.end_all()
    await asyncio.gather(*waiting)


@pytest.mark.long
async def test_a_response_that_waits_for_its_turn_is_never_long_away_however_often_it_was_deferred(
    running: Stack, fake: FakeUpstream, other: Api
) -> None:
    calls = HeldCalls(fake, "brief-")
    many, few = calls.model("many"), calls.model("few")
    for _ in range(8):
        await running.api().create_background(many)
    await calls.begun(PERMITS)
    response_id = await other.create_background(few)
    deferred = await until(lambda: waited_for(running, response_id))
    assert deferred is not None
    assert deferred["row"] == "upstream_full"
    as_after_many_attempts = (
        "UPDATE responses SET attempt = attempt + 20"
        " WHERE model = %s AND worker IS NULL RETURNING true"
    )
    await until(lambda: running.value(as_after_many_attempts, few))
    deferred = await until(lambda: waited_for(running, response_id))
    assert deferred is not None
    assert deferred["seconds"] < 3, "the pause grows to 30 s"
    calls.end_all()
    assert (await other.wait_for_end(response_id))["status"] == "completed"


async def test_a_project_whose_requests_break_a_model_stops_it_for_itself_alone(
    running: Stack, fake: FakeUpstream, other: Api
) -> None:
    model = fake.script(reply("Fine."))
    fake.decide(
        model,
        lambda request: [status(500)] if "Break." in str(request.messages) else reply("Fine."),
    )
    body = {"model": model, "input": "Break."}
    for _ in range(5):
        answer = await running.api().call("POST", "/responses", body)
        assert answer.status == 502
    answer = await running.api().call("POST", "/responses", body)
    assert (answer.status, len(fake.requests_for(model))) == (503, 5), "its circuit is open"
    assert (await other.create(model))["output_text"] == "Fine."
    async with console_user(running) as user:
        await user.get(f"{LOGIN_PATH}{create_link(running.dsn)}")

        async def is_shown() -> bool:
            page = await user.get("/console/upstreams")
            return f"does not call the model {model} for the project default" in page.text

        await until(is_shown, every=0.5)
