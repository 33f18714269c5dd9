"""Limits for stuck work: streamed or not, in the background or not, all clients get one ending.

docs/guarantees.md has the table of limits. tests/integration/upstream/test_fault_table.py has the
ways in which an upstream can reach them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import get_args

import pytest
from openai.types.responses import ResponseError

from models.errors import LimitReached
from models.lifecycle import CRASHES_ALONE
from tests.support.api import JSON, HttpResponse, until
from tests.support.fake_upstream import FakeUpstream, Script, hang, reply, text
from tests.support.stack import RUNNING_STACKS, Databases, Stack, SuiteSettings, stack
from tests.support.upstream_faults import endless, text_event

SDK_CODES = set(get_args(ResponseError.model_fields["code"].annotation))
COMMON_SETTINGS = {"BACKBURNER_UPSTREAM__MAX_RETRIES": "0", "BACKBURNER_LEASE__SWEEP": "0.5"}
STALL_SETTINGS = {
    "BACKBURNER_LIMITS__FIRST_TOKEN": "1",
    "BACKBURNER_LIMITS__TOKEN_GAP": "0.5",
    "BACKBURNER_LIMITS__TURN": "2",
    "BACKBURNER_LIMITS__OUTPUT": "1000000",
    "BACKBURNER_UPSTREAM__REPEAT_TURNS": "0",
}
DEADLINE_SETTINGS = {"BACKBURNER_LIMITS__QUEUE_WAIT": "3", "BACKBURNER_LIMITS__WALL_CLOCK": "2"}


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit: a script that reaches it, and the error that clients then get."""

    reason: str
    message: str
    script: Script
    output_prefix: str = ""
    """How the output begins; empty if there is none."""
    status: int = 504
    """The HTTP status for a foreground client without streaming, if there is no output."""


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
    "The model's output exceeded the limit of 1000000 bytes in one turn.",
    [endless(text_event("x" * 50_000))],
    "xxx",
)
WALL_CLOCK = Limit(
    "deadline",
    "The response did not finish within its time limit.",
    [text("so far"), hang()],
    "so far",
)
WALL_CLOCK_WITHOUT_OUTPUT = Limit("deadline", WALL_CLOCK.message, [hang()])
QUEUE_WAIT = Limit(
    "queue_wait", "The response waited in the queue longer than the limit.", reply("never")
)
DEATHS = Limit(
    "too_many_deaths",
    "The response failed: the processes that ran it crashed again and again.",
    reply("never"),
    status=502,
)


@pytest.fixture(scope="module")
async def stalled_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment whose limits for a silent or endless upstream are short."""
    async with stack(
        tmp_path_factory.mktemp("stalled"),
        database_server,
        suite_settings,
        fake,
        settings=COMMON_SETTINGS | STALL_SETTINGS,
    ) as running:
        yield running
    RUNNING_STACKS.remove(running)


@pytest.fixture(scope="module")
async def idle_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment without a worker for ordinary responses; the quarantine worker sweeps."""
    folder = tmp_path_factory.mktemp("idle")
    async with stack(
        folder,
        database_server,
        suite_settings,
        fake,
        workers=0,
        quarantine=True,
        settings=COMMON_SETTINGS | DEADLINE_SETTINGS,
    ) as running:
        yield running
    RUNNING_STACKS.remove(running)


async def assert_ends(
    running: Stack, limit: Limit, meanwhile: Callable[[str], Awaitable[None]] | None = None
) -> None:
    """Checks that four clients, background or not and streamed or not, get the same ending."""
    api, model = running.api(), running.fake.script(limit.script)

    async def post() -> HttpResponse:
        return await api.call("POST", "/responses", {"model": model, "input": "Hi."})

    async def read_stream(*, background: bool) -> JSON:
        async with api.post_stream(model, background=background) as stream:
            await stream.to_end()
            assert stream.is_done
            return stream.final

    async def poll() -> JSON:
        return await api.wait_for_end(await api.create_background(model))

    clients = asyncio.gather(
        post(), read_stream(background=False), read_stream(background=True), poll()
    )
    if meanwhile is not None:
        await meanwhile(model)
    answer, *responses = await clients
    if limit.output_prefix:
        assert answer.status == 200, answer.raw[:1000]
        responses.append(answer.body)
    else:
        assert (answer.status, answer.error["message"]) == (limit.status, limit.message)
        assert answer.headers["x-should-retry"] == "false"
    for response in responses:
        assert response["status"] == "failed"
        assert response["error"] == {"code": "server_error", "message": limit.message}
        assert response["output_text"].startswith(limit.output_prefix)
        assert [item["status"] for item in response["output"]] == ["incomplete"] * bool(
            limit.output_prefix
        )
    assert (
        await running.value("SELECT array_agg(reason) FROM responses WHERE model = %s", model)
        == [limit.reason] * 4
    )
    await until(lambda: not any(request.is_open for request in running.fake.requests_for(model)), 5)


def test_the_error_code_is_one_that_the_sdk_knows() -> None:
    assert "server_error" in SDK_CODES
    assert LimitReached("x", reason="y").status == 504


@pytest.mark.parametrize(
    "limit", [FIRST_TOKEN, TOKEN_GAP, TURN, OUTPUT], ids=lambda limit: limit.reason
)
async def test_a_response_of_a_stalled_upstream_ends_at_its_limit(
    stalled_stack: Stack, limit: Limit
) -> None:
    await assert_ends(stalled_stack, limit)


async def test_a_response_in_a_stuck_queue_ends_at_its_limit(
    idle_stack: Stack, fake: FakeUpstream
) -> None:
    await assert_ends(idle_stack, QUEUE_WAIT)


async def test_a_response_that_crashed_too_many_workers_fails(
    idle_stack: Stack, fake: FakeUpstream
) -> None:
    """Sets the state that seven dead owners leave; tests/chaos/test_quarantine.py kills them."""

    async def crashed_seven_times(model: str) -> None:
        async def all_exist() -> bool:
            return bool(
                await idle_stack.value("SELECT count(*) = 4 FROM responses WHERE model = %s", model)
            )

        await until(all_exist)
        await idle_stack.value(
            "UPDATE responses SET status = 'in_progress', attempt = 7, crashes = %s,"
            " started_at = now(), deadline = now() + interval '1 hour'"
            " WHERE model = %s RETURNING 1",
            CRASHES_ALONE + 1,
            model,
        )

    await assert_ends(idle_stack, DEATHS, crashed_seven_times)


async def test_a_response_that_exceeds_its_wall_clock_ends_at_its_limit(
    idle_stack: Stack, fake: FakeUpstream
) -> None:
    await idle_stack.start_worker()
    warm = fake.script(reply("warm"))

    async def gets_messages() -> bool:
        ended = await idle_stack.api().wait_for_end(await idle_stack.api().create_background(warm))
        return bool(ended["status"] == "completed")

    # A worker is counted as claiming a moment before its consumer gets messages.
    await until(gets_messages, 20)
    await asyncio.gather(
        assert_ends(idle_stack, WALL_CLOCK), assert_ends(idle_stack, WALL_CLOCK_WITHOUT_OUTPUT)
    )
