"""A worker dies or goes at every point of the tool loop: no finished and no unsafe call is made twice (I6, design §4.6).

Triggers in the database hold up the worker's own statements, each at its point, so that the kill comes exactly there: before a
statement's outcome, or after it was stored and before anybody was told.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.conftest import PrivateStack
from tests.support.api import JSON, Api, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.fake_upstream import FakeUpstream, hang, reply
from tests.support.mcp_servers import COUNTING_TOOLS, McpServers
from tests.support.stack import SHORT_LEASES, Stack
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, item_statuses, tool_turn

SETTINGS = {**SHORT_LEASES, **TOOL_SETTINGS, "BACKBURNER_WORKER__POOL_SIZE": "60"}

_TRIGGERS = """
    CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT parameters -> 'metadata' ->> 'held' FROM responses WHERE id = NEW.response_id) = TG_ARGV[0] THEN
            PERFORM pg_advisory_xact_lock_shared(hashtext((SELECT parameters -> 'metadata' ->> 'cut' FROM responses WHERE id = NEW.response_id)));
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER held_turn BEFORE INSERT ON tool_calls FOR EACH ROW WHEN (NEW.turn > 0) EXECUTE FUNCTION hold('turn');
    CREATE TRIGGER held_start BEFORE UPDATE ON tool_calls FOR EACH ROW
        WHEN (OLD.turn > 0 AND NEW.started_attempt IS DISTINCT FROM OLD.started_attempt) EXECUTE FUNCTION hold('start');
    CREATE TRIGGER held_finish BEFORE UPDATE ON tool_calls FOR EACH ROW
        WHEN (OLD.turn > 0 AND NEW.finished AND NOT OLD.finished) EXECUTE FUNCTION hold('finish');
"""


@dataclass(frozen=True)
class Cut:
    """Where the worker dies, and what becomes of the calls of the turn (unsafe, read-only, idempotent)."""

    held: str
    """The statement that is held up: `turn`, `start`, `finish`, or none."""
    stored: bool
    """Whether that statement still takes effect after the worker's death."""
    calls: tuple[int, ...]
    statuses: tuple[str, ...]
    asked: tuple[int, int] = (1, 1)
    """How often the upstream is asked for the first turn and for the second."""
    tools: tuple[str, ...] = COUNTING_TOOLS


DONE = ("completed", "completed", "completed")
UNKNOWN = ("failed", "completed", "completed")
CUTS = {
    "before the turn is stored": Cut("turn", False, (1, 1, 1), DONE, (2, 1)),
    "after the turn is stored": Cut("turn", True, (1, 1, 1), DONE),
    "before the call is noted as begun": Cut("start", False, (1, 1, 1), DONE),
    "between its note and the call": Cut("start", True, (0, 1, 1), UNKNOWN),
    "while the tool runs": Cut("", False, (1, 2, 2), UNKNOWN),
    "after its answer, before that is stored": Cut("finish", False, (1, 2, 2), UNKNOWN),
    # answers are stored one at a time
    "after its answer is stored": Cut(
        "finish", True, (1,), ("completed",), tools=("count_unsafe",)
    ),
    "in the next turn": Cut("", False, (1, 1, 1), DONE, (1, 2)),
}


@asynccontextmanager
async def held(one: Stack) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Holds up every statement that a cut names, until `release`."""
    async with await psycopg.AsyncConnection.connect(one.dsn, autocommit=True) as connection:
        await connection.execute(_TRIGGERS.encode())
        for cut in CUTS:
            await connection.execute("SELECT pg_advisory_lock(hashtext(%s))", (cut,))
        yield connection


async def waiting(one: Stack, cut: str) -> int:
    """How many statements wait at this cut."""
    question = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = hashtext(%s)::oid"
    return int(await one.value(question, cut))


def key(cut: str, tool: str) -> str:
    return f"{cut}: {tool}"


async def at_its_point(
    one: Stack, fake: FakeUpstream, mcp: McpServers, cut: str, model: str
) -> bool:
    """Whether the response has come to where it is to be cut."""
    calls = [mcp.tool_calls.calls_with(key(cut, tool)) for tool in CUTS[cut].tools]
    match CUTS[cut].held:
        case "turn" | "start":
            return await waiting(one, cut) > 0
        case "finish":
            return await waiting(one, cut) > 0 and all(
                made and made[0].finished is not None for made in calls
            )
        case _ if cut == "in the next turn":
            return len(fake.requests_for(model)) == 2
        case _:
            return all(calls)


async def stored(one: Stack, response_id: str, at: Cut) -> bool:
    """Whether the statement that was held up has taken effect for all calls."""
    column = {"turn": "true", "start": "started_attempt IS NOT NULL", "finish": "finished"}[at.held]
    question = (
        f"SELECT count(*) FROM tool_calls WHERE response_id = %s::uuid AND turn > 0 AND {column}"
    )
    return int(await one.value(question, response_id.removeprefix("resp_"))) == len(at.tools)


def called(mcp: McpServers, name: str, times: int = 1) -> bool:
    return len(mcp.tool_calls.calls_with(name)) == times


def given_up(mcp: McpServers, name: str) -> bool:
    return mcp.tool_calls.calls_with(name)[0].cancelled is not None


async def follow(api: Api, response_id: str) -> list[bytes]:
    async with api.follow(response_id) as stream:
        await stream.to_end()
        return stream.frames


async def test_a_killed_worker_costs_no_finished_and_no_unsafe_call_a_second_time(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(webs=2, settings=SETTINGS) as one,
        held(one) as holder,
    ):
        models, ids = {}, {}
        opened = [mcp.tool_calls.hold(key("while the tool runs", tool)) for tool in COUNTING_TOOLS]
        for cut, at in CUTS.items():
            turn = tool_turn(*((tool, key(cut, tool)) for tool in at.tools))
            cut_off = [[hang()]] if at.asked[1] == 2 else []
            models[cut] = fake.script(*[turn] * at.asked[0], *cut_off, reply("done"))
            ids[cut] = await one.api().create_background(
                models[cut], tools=[counting_server(mcp)], metadata={"cut": cut, "held": at.held}
            )
        readers = {cut: asyncio.create_task(follow(one.api(1), ids[cut])) for cut in CUTS}
        for cut in CUTS:
            await until(partial(at_its_point, one, fake, mcp, cut, models[cut]), 40)
        one.kill(one.workers[0])
        for cut, at in CUTS.items():
            if at.stored:
                await holder.execute("SELECT pg_advisory_unlock(hashtext(%s))", (cut,))
                await until(partial(stored, one, ids[cut], at), 5)
        for gate in opened:
            gate.set()
        # what was held up and is not to take effect dies with its session, which the sweep ends (design §4.6)
        gone = "SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await one.start_worker()
        await until(lambda: one.value(gone), 20)
        await holder.execute("SELECT pg_advisory_unlock_all()")
        ended = {cut: await one.api().wait_for_end(ids[cut], within=40) for cut in CUTS}
        frames = {cut: await reader for cut, reader in readers.items()}
        for cut, at in CUTS.items():
            assert_as_promised(cut, at, ended[cut], frames[cut], fake, models[cut], mcp)
            assert await one.api().replay(ids[cut]) == frames[cut], cut
    assert not mcp.faults, mcp.faults


def assert_as_promised(
    cut: str,
    at: Cut,
    ended: JSON,
    frames: list[bytes],
    fake: FakeUpstream,
    model: str,
    mcp: McpServers,
) -> None:
    calls = tuple(len(mcp.tool_calls.calls_with(key(cut, tool))) for tool in at.tools)
    assert calls == at.calls, f"{cut}: the tools were called {calls} times"
    expected = [
        "mcp_list_tools completed",
        *(f"mcp_call {status}" for status in at.statuses),
        "message completed",
    ]
    assert (ended["status"], item_statuses(ended)) == ("completed", expected), (
        f"{cut}: {ended['status']}, {item_statuses(ended)}"
    )
    assert len(fake.requests_for(model)) == sum(at.asked), (
        f"{cut}: the upstream was asked {len(fake.requests_for(model))} times"
    )
    events = assert_one_stream(frames)
    assert events[-1]["response"]["output"] == ended["output"], cut
    answers = [
        message["content"]
        for message in fake.requests_for(model)[-1].messages
        if message["role"] == "tool"
    ]
    for tool, status, count, answer in zip(at.tools, at.statuses, at.calls, answers, strict=True):
        if status == "completed":
            assert answer == f"{tool} {key(cut, tool)}: call {count}", cut
        else:
            assert "may or may not have happened" in answer, cut


async def test_a_stopping_worker_lets_calls_end_and_begins_none(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={**SETTINGS, "BACKBURNER_WORKER__GRACE": "15"}) as one,
    ):
        opened = mcp.tool_calls.hold("in the grace")
        model = fake.script(
            tool_turn(("count_unsafe", "in the grace"), ("count_unsafe", "after it")), reply("done")
        )
        # one at a time: the second call is not begun when the worker is told to stop
        response_id = await one.api().create_background(
            model, tools=[counting_server(mcp)], parallel_tool_calls=False
        )
        await until(lambda: mcp.tool_calls.calls_with("in the grace"))
        stopping = one.workers.pop()
        stopping.request_stop()
        await until(lambda: "worker_stopping" in stopping.tail())
        opened.set()
        await until(lambda: not stopping.running(), 20)
        assert stopping.exit_code() == 0
        await one.start_worker()
        ended = await one.api().wait_for_end(response_id)
        assert item_statuses(ended)[1:] == [
            "mcp_call completed",
            "mcp_call completed",
            "message completed",
        ]
        assert [len(mcp.tool_calls.calls_with(name)) for name in ("in the grace", "after it")] == [
            1,
            1,
        ]
        assert_one_stream(await one.api().replay(response_id))
        uuid = response_id.removeprefix("resp_")
        assert await one.value("SELECT deaths FROM responses WHERE id = %s::uuid", uuid) == 0
        assert (
            await one.value("SELECT max(attempt) FROM attempts WHERE response_id = %s::uuid", uuid)
            == 2
        ), "it was handed over"


async def test_calls_that_do_not_end_in_the_grace_are_handed_over_as_begun(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={**SETTINGS, "BACKBURNER_WORKER__GRACE": "0.5"}) as one,
    ):
        tools = ("count_unsafe", "count_read_only")
        for tool in tools:
            mcp.tool_calls.hold(tool)
        model = fake.script(tool_turn(*((tool, tool) for tool in tools)), reply("done"))
        response_id = await one.api().create_background(model, tools=[counting_server(mcp)])
        await until(lambda: all(mcp.tool_calls.calls_with(tool) for tool in tools))
        await one.stop(one.workers[0])
        for tool in tools:
            await until(partial(given_up, mcp, tool))
            mcp.tool_calls.hold(tool).set()
        await one.start_worker()
        ended = await one.api().wait_for_end(response_id)
        assert item_statuses(ended)[1:] == [
            "mcp_call failed",
            "mcp_call completed",
            "message completed",
        ]
        assert [len(mcp.tool_calls.calls_with(tool)) for tool in tools] == [1, 2]
        assert len(fake.requests_for(model)) == 2
        assert_one_stream(await one.api().replay(response_id))


async def test_a_finished_turn_forgives_the_deaths_before_it(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with McpServers() as mcp, private_stack(settings=SETTINGS, quarantine=True) as one:
        first, second = mcp.tool_calls.hold("first"), mcp.tool_calls.hold("second")
        model = fake.script(
            tool_turn(("count_read_only", "first")),
            tool_turn(("count_read_only", "second")),
            reply("done"),
        )
        response_id = await one.api().create_background(model, tools=[counting_server(mcp)])
        deaths = "SELECT deaths FROM responses WHERE id = %s::uuid"
        for name, opened in (("first", first), ("second", second)):
            await until(partial(called, mcp, name))
            assert await one.value(deaths, response_id.removeprefix("resp_")) == 0
            one.kill(one.workers[0])
            one.workers.insert(0, one.spawn_worker())
            one.workers.pop()
            await until(partial(called, mcp, name, 2), 40)
            assert await one.value(deaths, response_id.removeprefix("resp_")) == 1
            opened.set()
        assert (await one.api().wait_for_end(response_id))["status"] == "completed"


@pytest.mark.parametrize("verb", ["cancel", "delete"])
async def test_a_response_whose_worker_died_in_a_call_can_be_cancelled_and_deleted(
    private_stack: PrivateStack, fake: FakeUpstream, verb: str
) -> None:
    async with McpServers() as mcp, private_stack(settings=SETTINGS) as one:
        mcp.tool_calls.hold("orphan")
        model = fake.script(tool_turn(("count_unsafe", "orphan")), reply("never"))
        response_id = await one.api().create_background(model, tools=[counting_server(mcp)])
        await until(lambda: mcp.tool_calls.calls_with("orphan"))
        one.kill(one.workers[0])
        if verb == "cancel":
            await one.api().cancel(response_id)
        else:
            await one.api().call("DELETE", f"/responses/{response_id}")
        await one.start_worker()
        if verb == "cancel":
            ended = await one.api().wait_for_end(response_id)
            assert (ended["status"], item_statuses(ended)[1:]) == (
                "cancelled",
                ["mcp_call incomplete"],
            )
            assert_one_stream(await one.api().replay(response_id))
        await until(lambda: one.value("SELECT count(*) = 0 FROM job_secrets"), 20)
        assert len(fake.requests_for(model)) == 1
