"""A worker is killed at each point of the tool loop: no finished or unsafe call runs twice (I6).

Triggers in the database block the worker's own statements, each at its point, so that the kill
comes exactly there: before the statement takes effect, or after it is stored, before its reply.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
import pytest

from models.db.queries import leases, run
from tests.conftest import PrivateStack
from tests.support.api import JSON, Api, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.chaos.fragments import fragment
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    delta,
    done,
    finish,
    hang,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.mcp_servers import COUNTING_TOOLS, McpServers
from tests.support.stack import SHORT_LEASES, Stack
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, item_statuses, tool_turn

SETTINGS = {**SHORT_LEASES, **TOOL_SETTINGS, "BACKBURNER_WORKER__POOL_SIZE": "60"}

_START = fragment(run.START_CALL, "SET started_attempt")
_RENEW = fragment(leases.RENEW, "UPDATE workers SET expires_at")

SHORT_GRACES = {"BACKBURNER_WORKER__GRACE": "0.5", "BACKBURNER_WORKER__CALL_GRACE": "1"}

_TRIGGERS = """
    CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        metadata jsonb;
    BEGIN
        SELECT parameters -> 'metadata' INTO metadata FROM responses WHERE id = NEW.response_id;
        IF metadata ->> 'blocked' = TG_ARGV[0] THEN
            PERFORM pg_advisory_xact_lock_shared(hashtext(metadata ->> 'cut'));
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER blocked_turn BEFORE INSERT ON tool_calls FOR EACH ROW
        WHEN (NEW.turn > 0) EXECUTE FUNCTION hold('turn');
    CREATE TRIGGER blocked_start BEFORE UPDATE ON tool_calls FOR EACH ROW
        WHEN (OLD.turn > 0 AND NEW.started_attempt IS DISTINCT FROM OLD.started_attempt)
        EXECUTE FUNCTION hold('start');
    CREATE TRIGGER blocked_finish BEFORE UPDATE ON tool_calls FOR EACH ROW
        WHEN (OLD.turn > 0 AND NEW.finished AND NOT OLD.finished) EXECUTE FUNCTION hold('finish');
"""


@dataclass(frozen=True)
class CutPoint:
    """Where the worker dies, and the calls that then result (unsafe, read-only, idempotent)."""

    blocked: str
    """The statement that is blocked: `turn`, `start`, `finish`, or empty for none."""
    takes_effect: bool
    """Whether that statement still takes effect after the worker's death."""
    calls: tuple[int, ...]
    statuses: tuple[str, ...]
    upstream_calls: tuple[int, int] = (1, 1)
    """Number of upstream calls for the first turn and for the second."""
    tools: tuple[str, ...] = COUNTING_TOOLS


DONE = ("completed", "completed", "completed")
UNKNOWN = ("failed", "completed", "completed")
CUT_POINTS = {
    "before the turn is stored": CutPoint("turn", False, (1, 1, 1), DONE, (2, 1)),
    "after the turn is stored": CutPoint("turn", True, (1, 1, 1), DONE),
    "before the start of the call is stored": CutPoint("start", False, (1, 1, 1), DONE),
    "after the start, before the call": CutPoint("start", True, (0, 1, 1), UNKNOWN),
    "while the tool runs": CutPoint("", False, (1, 2, 2), UNKNOWN),
    "after its result, before that is stored": CutPoint("finish", False, (1, 2, 2), UNKNOWN),
    # Results are stored one at a time.
    "after its result is stored": CutPoint(
        "finish", True, (1,), ("completed",), tools=("count_unsafe",)
    ),
    "in the next turn": CutPoint("", False, (1, 1, 1), DONE, (1, 2)),
}


@asynccontextmanager
async def blocked(running: Stack) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Blocks every statement that a cut point names until its lock is released."""
    async with await psycopg.AsyncConnection.connect(running.dsn, autocommit=True) as connection:
        await connection.execute(_TRIGGERS.encode())
        for cut in CUT_POINTS:
            await connection.execute("SELECT pg_advisory_lock(hashtext(%s))", (cut,))
        yield connection


async def count_blocked(running: Stack, cut: str) -> int:
    """Counts the statements that wait at this cut point."""
    count_locks = (
        "SELECT count(*) FROM pg_locks"
        " WHERE locktype = 'advisory' AND NOT granted AND objid = hashtext(%s)::oid"
    )
    return int(await running.value(count_locks, cut))


def signatures(point: CutPoint) -> list[Step]:
    """What the upstream wants back with each call of the turn."""
    return [
        delta({"tool_calls": [{"index": nr, "extra_content": {"signature": f"s{nr}"}}]})
        for nr in range(len(point.tools))
    ]


def key(cut: str, tool: str) -> str:
    return f"{cut}: {tool}"


async def has_reached(
    running: Stack, fake: FakeUpstream, mcp: McpServers, cut: str, model: str
) -> bool:
    """Returns whether the response has reached its cut point."""
    calls = [mcp.tool_calls.calls_with(key(cut, tool)) for tool in CUT_POINTS[cut].tools]
    match CUT_POINTS[cut].blocked:
        case "turn" | "start":
            return await count_blocked(running, cut) > 0
        case "finish":
            return await count_blocked(running, cut) > 0 and all(
                done and done[0].finished is not None for done in calls
            )
        case _ if cut == "in the next turn":
            return len(fake.requests_for(model)) == 2
        case _:
            return all(calls)


async def is_stored(running: Stack, response_id: str, point: CutPoint) -> bool:
    """Returns whether the blocked statement has taken effect for all calls."""
    column = {"turn": "true", "start": "started_attempt IS NOT NULL", "finish": "finished"}[
        point.blocked
    ]
    count_rows = (
        f"SELECT count(*) FROM tool_calls WHERE response_id = %s::uuid AND turn > 0 AND {column}"
    )
    return int(await running.value(count_rows, response_id.removeprefix("resp_"))) == len(
        point.tools
    )


def was_called(mcp: McpServers, name: str, times: int = 1) -> bool:
    return len(mcp.tool_calls.calls_with(name)) == times


def was_cancelled(mcp: McpServers, name: str) -> bool:
    return mcp.tool_calls.calls_with(name)[0].cancelled is not None


async def follow(api: Api, response_id: str) -> list[bytes]:
    async with api.follow(response_id) as stream:
        await stream.to_end()
        return stream.frames


async def test_after_a_kill_no_finished_and_no_unsafe_call_runs_twice(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(webs=2, settings=SETTINGS) as running,
        blocked(running) as locks,
    ):
        models, ids = {}, {}
        gates = [mcp.tool_calls.hold(key("while the tool runs", tool)) for tool in COUNTING_TOOLS]
        for cut, point in CUT_POINTS.items():
            turn = [*signatures(point), *tool_turn(*((t, key(cut, t)) for t in point.tools))]
            cut_off = [[hang()]] if point.upstream_calls[1] == 2 else []
            models[cut] = fake.script(*[turn] * point.upstream_calls[0], *cut_off, reply("done"))
            ids[cut] = await running.api().create_background(
                models[cut],
                tools=[counting_server(mcp)],
                metadata={"cut": cut, "blocked": point.blocked},
            )
        readers = {cut: asyncio.create_task(follow(running.api(1), ids[cut])) for cut in CUT_POINTS}
        for cut in CUT_POINTS:
            await until(partial(has_reached, running, fake, mcp, cut, models[cut]), 40)
        running.kill(running.workers[0])
        for cut, point in CUT_POINTS.items():
            if point.takes_effect:
                await locks.execute("SELECT pg_advisory_unlock(hashtext(%s))", (cut,))
                await until(partial(is_stored, running, ids[cut], point), 5)
        for gate in gates:
            gate.set()
        # A statement that must not take effect dies with its session, which the sweep ends.
        no_lock_waits = (
            "SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        )
        await running.start_worker()
        await until(lambda: running.value(no_lock_waits), 20)
        await locks.execute("SELECT pg_advisory_unlock_all()")
        ended = {cut: await running.api().wait_for_end(ids[cut], within=40) for cut in CUT_POINTS}
        frames = {cut: await reader for cut, reader in readers.items()}
        for cut, point in CUT_POINTS.items():
            assert_calls(cut, point, ended[cut], frames[cut], fake, models[cut], mcp)
            assert await running.api().replay(ids[cut]) == frames[cut], cut
    assert not mcp.faults, mcp.faults


def assert_calls(
    cut: str,
    point: CutPoint,
    ended: JSON,
    frames: list[bytes],
    fake: FakeUpstream,
    model: str,
    mcp: McpServers,
) -> None:
    calls = tuple(len(mcp.tool_calls.calls_with(key(cut, tool))) for tool in point.tools)
    assert calls == point.calls, f"{cut}: the tools were called {calls} times"
    expected = [
        "mcp_list_tools completed",
        *(f"mcp_call {status}" for status in point.statuses),
        "message completed",
    ]
    assert (ended["status"], item_statuses(ended)) == ("completed", expected), (
        f"{cut}: {ended['status']}, {item_statuses(ended)}"
    )
    assert len(fake.requests_for(model)) == sum(point.upstream_calls), (
        f"{cut}: the upstream was called {len(fake.requests_for(model))} times"
    )
    events = assert_one_stream(frames)
    assert events[-1]["response"]["output"] == ended["output"], cut
    messages = fake.requests_for(model)[-1].messages
    [made] = [message["tool_calls"] for message in messages if message["role"] == "assistant"]
    signed = [(call["id"], call["extra_content"]["signature"]) for call in made]
    assert signed == [(f"call_{number}", f"s{number}") for number in range(len(made))], cut
    outputs = [message["content"] for message in messages if message["role"] == "tool"]
    for tool, status, count, output in zip(
        point.tools, point.statuses, point.calls, outputs, strict=True
    ):
        if status == "completed":
            assert output == f"{tool} {key(cut, tool)}: call {count}", cut
        else:
            assert "may or may not have happened" in output, cut


@pytest.mark.long
async def test_a_worker_that_was_frozen_before_its_calls_makes_none_when_it_wakes_up(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """The starts of its calls are stored when it is frozen, and their replies wait for it. Nothing
    notifies it of its death: the reply to its heartbeat waits too."""
    async with (
        McpServers() as mcp,
        private_stack(settings=SETTINGS, proxied=True) as running,
    ):
        api, zombie, may_call = running.api(), running.workers[0], asyncio.Event()
        calls = [(tool, tool) for tool in COUNTING_TOOLS]
        model = fake.script([wait_for(may_call), *tool_turn(*calls)], reply("done"))
        response_id = await api.create_background(model, tools=[counting_server(mcp)])
        await until(lambda: fake.requests_for(model))
        postgres = zombie.proxies.postgres
        starts = [postgres.hold_answer(_START) for _ in calls]
        may_call.set()
        for start in starts:
            await start.answered.wait()
        heartbeat = postgres.hold_answer(_RENEW)
        await heartbeat.answered.wait()
        zombie.pause()
        await running.start_worker()
        ended = await api.wait_for_end(response_id, within=40)
        for start in starts:
            start.release()
        zombie.resume()
        # Meanwhile it could make its calls.
        for _ in range(5):
            await api.wait_for_end(await api.create_background(fake.script(reply("other"))))
        heartbeat.release()
        await until(lambda: not zombie.running(), 20)
        running.forget(zombie)
        made = {tool: len(mcp.tool_calls.calls_with(tool)) for tool in COUNTING_TOOLS}
        assert made == {"count_unsafe": 0, "count_read_only": 1, "count_idempotent": 1}
        assert item_statuses(ended)[1:4] == [f"mcp_call {status}" for status in UNKNOWN]


async def test_a_stopping_worker_finishes_its_calls_and_starts_none(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={**SETTINGS, "BACKBURNER_WORKER__GRACE": "15"}) as running,
    ):
        released = mcp.tool_calls.hold("in the grace")
        model = fake.script(
            tool_turn(("count_unsafe", "in the grace"), ("count_unsafe", "after it")), reply("done")
        )
        # Calls run one after the other: the second has not started when SIGTERM comes.
        response_id = await running.api().create_background(
            model, tools=[counting_server(mcp)], parallel_tool_calls=False
        )
        await until(lambda: mcp.tool_calls.calls_with("in the grace"))
        stopping = running.workers.pop()
        stopping.request_stop()
        await until(lambda: "worker_stopping" in stopping.tail())
        released.set()
        await until(lambda: not stopping.running(), 20)
        assert stopping.exit_code() == 0
        await running.start_worker()
        ended = await running.api().wait_for_end(response_id)
        assert item_statuses(ended)[1:] == [
            "mcp_call completed",
            "mcp_call completed",
            "message completed",
        ]
        assert [len(mcp.tool_calls.calls_with(name)) for name in ("in the grace", "after it")] == [
            1,
            1,
        ]
        assert_one_stream(await running.api().replay(response_id))
        uuid = response_id.removeprefix("resp_")
        assert await running.value("SELECT crashes FROM responses WHERE id = %s::uuid", uuid) == 0
        assert (
            await running.value(
                "SELECT max(attempt) FROM attempts WHERE response_id = %s::uuid", uuid
            )
            == 2
        ), "the response was not handed over"


@pytest.mark.long
async def test_a_stopping_worker_waits_longer_for_a_call_that_must_not_run_twice(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """Everything else is handed over before: a turn, and a call that may run twice."""
    async with (
        McpServers() as mcp,
        private_stack(settings={**SETTINGS, "BACKBURNER_WORKER__GRACE": "0.5"}) as running,
    ):
        api, tools = running.api(), [counting_server(mcp)]
        unsafe, safe = mcp.tool_calls.hold("unsafe"), mcp.tool_calls.hold("safe")
        unsafe_id = await api.create_background(
            fake.script(tool_turn(("count_unsafe", "unsafe")), reply("done")), tools=tools
        )
        others = [
            await api.create_background(fake.script([text("half"), hang()], reply("done"))),
            await api.create_background(
                fake.script(tool_turn(("count_read_only", "safe")), reply("done")), tools=tools
            ),
        ]
        await until(lambda: all(mcp.tool_calls.calls_with(key) for key in ("unsafe", "safe")))
        await running.start_worker()
        stopping = running.workers.pop(0)
        stopping.request_stop()
        await until(lambda: len(mcp.tool_calls.calls_with("safe")) == 2)
        safe.set()
        for response_id in others:
            assert (await api.wait_for_end(response_id))["status"] == "completed"
        assert stopping.running()
        unsafe.set()
        assert item_statuses(await api.wait_for_end(unsafe_id))[1:] == [
            "mcp_call completed",
            "message completed",
        ]
        assert len(mcp.tool_calls.calls_with("unsafe")) == 1
        await until(lambda: not stopping.running(), 20)
        assert stopping.exit_code() == 0
        assert await running.value("SELECT sum(crashes) FROM responses") == 0


@pytest.mark.long
async def test_calls_longer_than_the_grace_period_are_handed_over_as_started(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={**SETTINGS, **SHORT_GRACES}) as running,
    ):
        tools = ("count_unsafe", "count_read_only")
        for tool in tools:
            mcp.tool_calls.hold(tool)
        model = fake.script(tool_turn(*((tool, tool) for tool in tools)), reply("done"))
        response_id = await running.api().create_background(model, tools=[counting_server(mcp)])
        await until(lambda: all(mcp.tool_calls.calls_with(tool) for tool in tools))
        await running.stop(running.workers[0])
        for tool in tools:
            await until(partial(was_cancelled, mcp, tool))
            mcp.tool_calls.hold(tool).set()
        await running.start_worker()
        ended = await running.api().wait_for_end(response_id)
        assert item_statuses(ended)[1:] == [
            "mcp_call failed",
            "mcp_call completed",
            "message completed",
        ]
        assert [len(mcp.tool_calls.calls_with(tool)) for tool in tools] == [1, 2]
        assert len(fake.requests_for(model)) == 2
        assert_one_stream(await running.api().replay(response_id))


async def test_a_call_refused_by_a_cancel_ends_the_response_at_once(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """The cancel's message to the worker is lost, and the next heartbeat, which would bring it, is
    far away."""
    long_beats = {
        "BACKBURNER_LEASE__BEAT": "20",
        "BACKBURNER_LEASE__CAUTION": "40",
        "BACKBURNER_LEASE__DURATION": "60",
    }
    async with (
        McpServers() as mcp,
        private_stack(settings={**TOOL_SETTINGS, **long_beats}, proxied=True) as running,
    ):
        cancelled = asyncio.Event()
        *calls, end_of_turn, counts, last = tool_turn(("count_unsafe", "never"))
        model = fake.script([*calls, wait_for(cancelled), end_of_turn, counts, last])
        response_id = await running.api().create_background(model, tools=[counting_server(mcp)])
        await until(lambda: len(fake.requests_for(model)) == 1)
        running.workers[0].proxies.redis.refuse()
        answer = asyncio.create_task(running.api().cancel(response_id))
        uuid = response_id.removeprefix("resp_")
        await until(
            lambda: running.value(
                "SELECT cancel_requested_at IS NOT NULL FROM responses WHERE id = %s::uuid", uuid
            )
        )
        cancelled.set()
        assert (await answer).body["status"] == "cancelled"
        attempts = "SELECT count(*) FROM attempts WHERE response_id = %s::uuid"
        assert await running.value(attempts, uuid) == 1
        assert not mcp.tool_calls.calls_with("never")
        assert_one_stream(await running.api().replay(response_id))


@pytest.mark.long
async def test_a_finished_turn_resets_the_crashes_before_it(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with McpServers() as mcp, private_stack(settings=SETTINGS, quarantine=True) as running:
        first, second = mcp.tool_calls.hold("first"), mcp.tool_calls.hold("second")
        model = fake.script(
            tool_turn(("count_read_only", "first")),
            tool_turn(("count_read_only", "second")),
            reply("done"),
        )
        response_id = await running.api().create_background(model, tools=[counting_server(mcp)])
        count_crashes = "SELECT crashes FROM responses WHERE id = %s::uuid"
        for name, released in (("first", first), ("second", second)):
            await until(partial(was_called, mcp, name))
            assert await running.value(count_crashes, response_id.removeprefix("resp_")) == 0
            running.kill(running.workers[0])
            running.workers.insert(0, running.spawn_worker())
            running.workers.pop()
            await until(partial(was_called, mcp, name, 2), 40)
            assert await running.value(count_crashes, response_id.removeprefix("resp_")) == 1
            released.set()
        assert (await running.api().wait_for_end(response_id))["status"] == "completed"


CLIENT_TOOL = {
    "type": "function",
    "name": "client_tool",
    "parameters": {"type": "object", "properties": {}},
}
HELD_TURN = [
    call(0, "call_0", "count_unsafe", '{"key": "slow"}'),
    call(1, "call_1", "count_unsafe", '{"key": "quick"}'),
    call(2, "call_2", "client_tool", "{}"),
    finish("tool_calls"),
    usage(),
    done(),
]


@pytest.mark.parametrize("is_cancelled", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_items_that_the_stream_holds_back_survive_a_kill(
    private_stack: PrivateStack, fake: FakeUpstream, *, is_cancelled: bool
) -> None:
    """The second call has its result, and the client's call is complete, while the first runs."""
    count_finished = "SELECT count(*) FROM tool_calls WHERE finished AND turn > 0"
    async with McpServers() as mcp, private_stack(settings=SETTINGS) as running:
        mcp.tool_calls.hold("slow")
        model = fake.script(HELD_TURN)
        api = running.api()
        response_id = await api.create_background(model, tools=[CLIENT_TOOL, counting_server(mcp)])
        reader = asyncio.create_task(follow(api, response_id))
        await until(lambda: mcp.tool_calls.calls_with("slow"))
        await until(lambda: running.value(count_finished))
        assert item_statuses(await api.get(response_id))[1:] == ["mcp_call in_progress"]
        running.kill(running.workers[0])
        if is_cancelled:
            await api.cancel(response_id)
        await running.start_worker()
        ended = await api.wait_for_end(response_id, within=40)
        assert item_statuses(ended)[1:] == [
            "mcp_call incomplete" if is_cancelled else "mcp_call failed",
            "mcp_call completed",
            "function_call completed",
        ]
        assert ended["output"][2]["output"] == "count_unsafe quick: call 1"
        assert [len(mcp.tool_calls.calls_with(name)) for name in ("slow", "quick")] == [1, 1]
        events = assert_one_stream(await reader)
        assert events[-1]["response"]["output"] == ended["output"]


@pytest.mark.parametrize("action", ["cancel", pytest.param("delete", marks=pytest.mark.long)])
async def test_a_response_whose_worker_died_in_a_call_can_be_cancelled_and_deleted(
    private_stack: PrivateStack, fake: FakeUpstream, action: str
) -> None:
    async with McpServers() as mcp, private_stack(settings=SETTINGS) as running:
        mcp.tool_calls.hold("orphan")
        model = fake.script(tool_turn(("count_unsafe", "orphan")), reply("never"))
        response_id = await running.api().create_background(model, tools=[counting_server(mcp)])
        await until(lambda: mcp.tool_calls.calls_with("orphan"))
        running.kill(running.workers[0])
        if action == "cancel":
            await running.api().cancel(response_id)
        else:
            await running.api().call("DELETE", f"/responses/{response_id}")
        await running.start_worker()
        if action == "cancel":
            ended = await running.api().wait_for_end(response_id)
            assert (ended["status"], item_statuses(ended)[1:]) == (
                "cancelled",
                ["mcp_call incomplete"],
            )
            assert_one_stream(await running.api().replay(response_id))
        await until(lambda: running.value("SELECT count(*) = 0 FROM job_secrets"), 20)
        assert len(fake.requests_for(model)) == 1
