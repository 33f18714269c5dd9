"""Limits against stuck work (design §8): whatever stalls ends, in every way of asking, with the same words, reason and code.

docs/guarantees.md has the table; tests/integration/upstream/test_fault_table.py has the many ways in which an upstream can reach the limits.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import get_args

import pytest
from openai.types.responses import ResponseError

from models.errors import LimitReached
from tests.support.api import JSON, HttpResponse, until
from tests.support.fake_upstream import FakeUpstream, Script, hang, reply, text
from tests.support.stack import RUNNING_STACKS, Databases, Stack, SuiteSettings, stack
from tests.support.upstream_faults import endless, text_event

CODES = set(get_args(ResponseError.model_fields["code"].annotation))
PATIENT = {"BACKBURNER_UPSTREAM__MAX_RETRIES": "0", "BACKBURNER_LEASE__SWEEP": "0.5"}
STALLED = {
    "BACKBURNER_LIMITS__FIRST_TOKEN": "1",
    "BACKBURNER_LIMITS__TOKEN_GAP": "0.5",
    "BACKBURNER_LIMITS__TURN": "2",
    "BACKBURNER_LIMITS__OUTPUT": "1000000",
}
LATE = {"BACKBURNER_LIMITS__QUEUE_WAIT": "3", "BACKBURNER_LIMITS__WALL_CLOCK": "2"}


@dataclass(frozen=True, slots=True)
class Limit:
    """What reaches it, and what everybody is then told."""

    reason: str
    message: str
    script: Script
    said: str = ""
    """How the output begins, if there is any."""
    status: int = 504
    """HTTP, of a foreground client that does not stream and has no output."""


FIRST_TOKEN = Limit(
    "first_token",
    "The upstream was silent for longer than the limit of 1 s (first_token).",
    [hang()],
)
TOKEN_GAP = Limit(
    "token_gap",
    "The upstream was silent for longer than the limit of 0.5 s (token_gap).",
    [text("so far"), hang()],
    "so far",
)
TURN = Limit(
    "turn_limit",
    "The model's turn took longer than the limit of 2 s.",
    [text(*"abcdefghijklmnopqrstuvwxyz", gap=0.2)],
    "abc",
)
OUTPUT = Limit(
    "output_limit",
    "The model said more than the limit of 1000000 bytes in one turn.",
    [endless(text_event("x" * 50_000))],
    "xxx",
)
WALL_CLOCK = Limit(
    "deadline",
    "The response did not finish within the time it is given.",
    [text("so far"), hang()],
    "so far",
)
WALL_CLOCK_BEFORE_A_WORD = Limit("deadline", WALL_CLOCK.message, [hang()])
QUEUE_WAIT = Limit(
    "queue_wait", "The response waited in the queue for longer than it may.", reply("never")
)
DEATHS = Limit(
    "too_many_deaths",
    "The response was given up: the processes that ran it died three times.",
    reply("never"),
    status=502,
)


@pytest.fixture(scope="module")
async def stalled(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A worker whose upstreams stall."""
    async with stack(
        tmp_path_factory.mktemp("stalled"),
        database_server,
        suite_settings,
        fake,
        settings=PATIENT | STALLED,
    ) as one:
        yield one
    RUNNING_STACKS.remove(one)


@pytest.fixture(scope="module")
async def idle(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """Nobody runs anything: the only worker is one for quarantine, which sweeps like all of them."""
    folder = tmp_path_factory.mktemp("idle")
    async with stack(
        folder,
        database_server,
        suite_settings,
        fake,
        workers=0,
        quarantine=True,
        settings=PATIENT | LATE,
    ) as one:
        yield one
    RUNNING_STACKS.remove(one)


async def assert_ends(
    one: Stack, limit: Limit, meanwhile: Callable[[str], Awaitable[None]] | None = None
) -> None:
    """Background and foreground, streamed and not: four clients of the same model, and one ending."""
    api, model = one.api(), one.fake.script(limit.script)

    async def wait() -> HttpResponse:
        return await api.call("POST", "/responses", {"model": model, "input": "Hi."})

    async def listen(*, background: bool) -> JSON:
        async with api.post_stream(model, background=background) as stream:
            await stream.to_end()
            assert stream.is_done
            return stream.final

    async def come_back() -> JSON:
        return await api.wait_for_end(await api.create_background(model))

    asking = asyncio.gather(wait(), listen(background=False), listen(background=True), come_back())
    if meanwhile is not None:
        await meanwhile(model)
    answer, *ended = await asking
    if limit.said:
        assert answer.status == 200, answer.raw[:1000]
        ended.append(answer.body)
    else:
        assert (answer.status, answer.error["message"]) == (limit.status, limit.message)
        assert answer.headers["x-should-retry"] == "false"
    for response in ended:
        assert response["status"] == "failed"
        assert response["error"] == {"code": "server_error", "message": limit.message}
        assert response["output_text"].startswith(limit.said)
        assert [item["status"] for item in response["output"]] == ["incomplete"] * bool(limit.said)
    assert (
        await one.value("SELECT array_agg(reason) FROM responses WHERE model = %s", model)
        == [limit.reason] * 4
    )
    await until(lambda: not any(request.is_open for request in one.fake.requests_for(model)), 5)


def test_the_code_is_one_that_the_sdk_knows() -> None:
    assert "server_error" in CODES
    assert LimitReached("x", reason="y").status == 504


@pytest.mark.parametrize(
    "limit", [FIRST_TOKEN, TOKEN_GAP, TURN, OUTPUT], ids=lambda limit: limit.reason
)
async def test_an_upstream_that_stalls(stalled: Stack, limit: Limit) -> None:
    await assert_ends(stalled, limit)


async def test_a_queue_that_does_not_move(idle: Stack, fake: FakeUpstream) -> None:
    await assert_ends(idle, QUEUE_WAIT)


async def test_a_response_whose_owners_die(idle: Stack, fake: FakeUpstream) -> None:
    """As three dead owners leave it; tests/chaos/test_kill_worker.py kills them."""

    async def died_three_times(model: str) -> None:
        async def all_are_there() -> bool:
            return bool(
                await idle.value("SELECT count(*) = 4 FROM responses WHERE model = %s", model)
            )

        await until(all_are_there)
        await idle.value(
            "UPDATE responses SET status = 'in_progress', attempt = 3, deaths = 3, started_at = now(), deadline = now() + interval '1 hour'"
            " WHERE model = %s RETURNING 1",
            model,
        )

    await assert_ends(idle, DEATHS, died_three_times)


async def test_a_response_that_outlasts_its_wall_clock(idle: Stack, fake: FakeUpstream) -> None:
    await idle.start_worker()
    warm = fake.script(reply("warm"))

    async def hears_its_bells() -> bool:
        ended = await idle.api().wait_for_end(await idle.api().create_background(warm))
        return bool(ended["status"] == "completed")

    await until(hears_its_bells, 20)  # a worker counts a moment before its consumer listens
    await asyncio.gather(assert_ends(idle, WALL_CLOCK), assert_ends(idle, WALL_CLOCK_BEFORE_A_WORD))
