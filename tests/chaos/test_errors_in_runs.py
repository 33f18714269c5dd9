"""Errors of this server, and statements that Postgres refuses, in the middle of a response.

Triggers in the database raise the errors: each names one response by its model, and the others are
not affected.
"""

from collections.abc import AsyncIterator
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from models.ownership.lease import EXIT_REFUSED
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.chaos.faulty_worker import INJECTED
from tests.support.fake_upstream import FakeUpstream, Step, reply
from tests.support.mcp_servers import McpServers
from tests.support.stack import (
    RUNNING_STACKS,
    SHORT_LEASES,
    Databases,
    Stack,
    SuiteSettings,
    stack,
)
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, tool_turn

SLOW_FLUSHES = {**SHORT_LEASES, "BACKBURNER_WORKER__FLUSH_INTERVAL": "30"}
"""What readers have received is only in the journal for a long time."""
ENDING = "NEW.status NOT IN ('queued', 'in_progress')"
RELEASE = "NEW.status = 'in_progress' AND OLD.worker IS NOT NULL AND NEW.worker IS NULL"
ENDING_OF_ATTEMPT_1 = f"{ENDING} AND OLD.attempt <= 1"
ENDING_OF_ATTEMPT_1_OR_2 = f"{ENDING} AND OLD.attempt <= 2"
ALWAYS = 1000
LONG_ANSWER: list[Step] = reply(*(f"word {number} " for number in range(200)))


async def fail_updates(
    running: Stack,
    model: str,
    when: LiteralString,
    *,
    times: int,
    code: str = "P0001",
    name: str = "fault",
) -> None:
    """The next `times` updates of this model's response for which `when` holds raise an error."""
    statement = sql.SQL(
        """
        CREATE SEQUENCE {name};
        CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.model = {model} AND ({when}) AND nextval({sequence}) <= {times} THEN
                RAISE EXCEPTION USING ERRCODE = {code}, MESSAGE = {message};
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER {name} BEFORE UPDATE ON responses FOR EACH ROW EXECUTE FUNCTION {name}();
        """
    ).format(
        name=sql.Identifier(name),
        sequence=sql.Literal(name),
        model=sql.Literal(model),
        when=sql.SQL(when),
        times=sql.Literal(times),
        code=sql.Literal(code),
        message=sql.Literal(INJECTED),
    )
    async with await psycopg.AsyncConnection.connect(running.dsn, autocommit=True) as connection:
        await connection.execute(statement)


async def attempt_outcomes(running: Stack, model: str) -> list[str | None]:
    """The outcomes of the attempts of this model's response."""
    outcomes: list[str | None] = await running.value(
        "SELECT array_agg(a.outcome ORDER BY a.attempt) FROM attempts a"
        " JOIN responses r ON r.id = a.response_id WHERE r.model = %s",
        model,
    )
    return outcomes


@pytest.mark.long
async def test_readers_get_one_numbering_although_an_attempt_and_its_release_failed(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """Without the whole log in the release, the next attempt would use the numbers again."""
    async with private_stack(
        workers=2, settings=SLOW_FLUSHES, allowed_tracebacks=(INJECTED,)
    ) as running:
        model = fake.script(LONG_ANSWER, reply("new"))
        await fail_updates(running, model, ENDING_OF_ATTEMPT_1, times=ALWAYS)
        await fail_updates(running, model, RELEASE, times=1, name="release_fault")
        async with running.api().post_stream(model, background=True) as stream:
            await stream.to_end()
        assert_one_stream(stream.frames)
        assert stream.final["status"] == "completed"
        assert stream.final["output_text"] == "new"
        assert await running.api().replay(stream.response_id) == stream.frames
        assert await attempt_outcomes(running, model) == ["died", None]
        [exited] = [worker for worker in running.workers if not worker.running()]
        running.forget(exited)


async def test_attempts_that_break_off_with_errors_are_counted_as_crashes(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """So their number is bounded, and after two of them only a quarantine worker runs it."""
    async with private_stack(
        quarantine=True, settings=SLOW_FLUSHES, allowed_tracebacks=(INJECTED,)
    ) as running:
        model = fake.script(LONG_ANSWER, LONG_ANSWER, reply("new"))
        await fail_updates(running, model, ENDING_OF_ATTEMPT_1_OR_2, times=ALWAYS)
        async with running.api().post_stream(model, background=True) as stream:
            await stream.to_end()
        assert_one_stream(stream.frames)
        assert stream.final["output_text"] == "new"
        assert await running.api().replay(stream.response_id) == stream.frames
        assert await attempt_outcomes(running, model) == ["error", "error", None]
        kinds = await running.value("SELECT array_agg(kind ORDER BY attempt) FROM attempts")
        assert kinds == ["worker", "worker", "quarantine"]


@pytest.mark.long
async def test_an_ending_that_postgres_always_cancels_fails_the_response_and_no_other(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(settings=SHORT_LEASES, allowed_tracebacks=(INJECTED,)) as running:
        model = fake.script(LONG_ANSWER)
        completes = f"{ENDING} AND NEW.status = 'completed'"
        await fail_updates(running, model, completes, times=ALWAYS, code="57014")
        async with running.api().post_stream(model, background=True) as stream:
            other = await running.api().create(fake.script(reply("fine")), background=False)
            assert other["output_text"] == "fine"
            await stream.to_end()
        assert_one_stream(stream.frames)
        assert stream.final["status"] == "failed"
        assert await running.api().get(stream.response_id) == stream.final
        assert len(fake.requests_for(model)) == 1


async def test_a_checkpoint_beyond_a_limit_of_postgres_fails_the_response_at_once(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(
            settings={**SHORT_LEASES, **TOOL_SETTINGS}, allowed_tracebacks=(INJECTED,)
        ) as running,
    ):
        model = fake.script(tool_turn(("count_unsafe", "refused")), reply("never"))
        finished_turn = "NEW.turns > OLD.turns AND NEW.status = 'in_progress'"
        await fail_updates(running, model, finished_turn, times=ALWAYS, code="54000")
        response_id = await running.api().create_background(model, tools=[counting_server(mcp)])
        ended = await running.api().wait_for_end(response_id)
        assert (ended["status"], ended["error"]["code"]) == ("failed", "server_error")
        reason = await running.value("SELECT reason FROM responses WHERE model = %s", model)
        assert reason == "statement_refused"
        assert not mcp.tool_calls.calls_with("refused")
        assert_one_stream(await running.api().replay(response_id))


async def test_a_response_whose_output_cannot_be_stored_at_its_end_fails_without_output(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """Neither with the last turn nor without it: only the ending without any items is possible."""
    settings = {**SHORT_LEASES, **TOOL_SETTINGS}
    async with (
        McpServers() as mcp,
        private_stack(settings=settings, allowed_tracebacks=(INJECTED,)) as running,
    ):
        model = fake.script(tool_turn(("count_unsafe", "stored")), reply("done"))
        await fail_updates(running, model, f"{ENDING} AND NEW.usage IS NOT NULL", times=ALWAYS)
        response_id = await running.api().create_background(model, tools=[counting_server(mcp)])
        async with running.api().follow(response_id) as stream:
            await stream.to_end()
        assert (stream.final["status"], stream.final["output"]) == ("failed", [])
        assert await attempt_outcomes(running, model) == [None]
        assert len(mcp.tool_calls.calls_with("stored")) == 1


@pytest.mark.long
async def test_a_call_whose_result_only_the_log_has_is_closed_once(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """Neither a call's result nor the ending after it could be stored, in two attempts.

    The third attempt reads the log after the second one's checkpoint only.
    """
    settings = {**SLOW_FLUSHES, **TOOL_SETTINGS}
    async with (
        McpServers() as mcp,
        private_stack(settings=settings, allowed_tracebacks=(INJECTED,)) as running,
    ):
        turns = [tool_turn(("count_unsafe", name)) for name in ("first", "second")]
        model = fake.script(*turns, reply("done"))
        result = "NEW.turns = OLD.turns AND NEW.checkpoint_number > OLD.checkpoint_number"
        await fail_updates(
            running, model, f"NOT ({ENDING}) AND {result} AND NEW.turns > 0", times=2, code="54000"
        )
        await fail_updates(running, model, ENDING_OF_ATTEMPT_1_OR_2, times=ALWAYS, name="end_fault")
        response_id = await running.api().create_background(model, tools=[counting_server(mcp)])
        async with running.api().follow(response_id) as stream:
            await stream.to_end()
        assert_one_stream(stream.frames)
        assert await attempt_outcomes(running, model) == ["error", "error", None]
        assert (stream.final["status"], stream.final["output_text"]) == ("completed", "done")
        done = [
            event["item"]["id"]
            for event in stream.events
            if event["type"] == "response.output_item.done"
        ]
        assert done == [item["id"] for item in stream.final["output"]]
        for name in ("first", "second"):
            assert len(mcp.tool_calls.calls_with(name)) == 1


FAULTS = (
    "worker.run.runner:write_first_events:1",
    "worker.run.runner:prepare_run:1",
    "worker.run.runner:Run._execute:1",
    "worker.run.runner:Run._end:1",
    "worker.run.attempt:Attempt.close_open_items:1",
    "worker.run.attempt:Attempt.final_output:1",
    "worker.log.journal:Journal.has_room:20",
    "worker.run.attempt_writer:AttemptWriter.end:1",
    "worker.log.journal:Journal.store_last:1",
    "worker.log.event_log:EventLog.unflushed:1",
    "worker.log.event_log:EventLog.cut_block:5",
    "worker.log.event_log:EventLog.tail_to_flush:2",
    "worker.log.event_log:EventLog.drop_flushed:2",
    "worker.log.batch_writer:BatchWriter._store:5",
    "worker.log.journal:Journal._publish:5",
    "worker.log.flush_writer:FlushWriter._store:2",
    "worker.log.event_log:OpenLogs.notify_waiters:5",
    "worker.translation.chat.translator:ChatTranslator.feed:10",
    "models.ownership.endings:EndingWriter.store:1",
    "worker.tools.toolbox:Toolbox.close:1",
)
"""A function in each step of a run and of its log, and at which of its calls it fails.

What hands an event from the turn to the log (`AttemptWriter.write`) is not among them: after a bug
there, readers miss one delta, and the done event has the whole text.
"""


@pytest.fixture(scope="module")
async def quiet_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A web process; each test starts its own workers."""
    async with stack(
        tmp_path_factory.mktemp("bugs"),
        database_server,
        suite_settings,
        fake,
        workers=0,
        settings={**SHORT_LEASES, "BACKBURNER_WORKER__FLUSH_INTERVAL": "0.3"},
        allowed_tracebacks=(INJECTED,),
    ) as running:
        yield running
    RUNNING_STACKS.remove(running)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_bug_in_any_step_of_a_run_costs_readers_nothing_but_time(
    quiet_stack: Stack, fake: FakeUpstream, fault: str
) -> None:
    """One numbering, the same bytes for every reader, and an ending."""
    running = quiet_stack
    faulty = running.spawn_faulty_worker(fault)
    await running.wait_until_claiming(faulty)
    model = fake.script(reply(*(f"word {number} " for number in range(40)), gap=0.03))
    try:
        async with running.api().post_stream(model, background=True) as stream:
            await until(lambda: attempt_outcomes(running, model))
            running.spawn_worker()
            await stream.to_end()
        assert_one_stream(stream.frames)
        assert stream.final["status"] in {"completed", "failed"}
        assert await running.api().replay(stream.response_id) == stream.frames
        assert await running.api().get(stream.response_id) == stream.final
        assert INJECTED in faulty.tail(100_000), "the function was not called so often"
        assert faulty.running() or faulty.exit_code() == EXIT_REFUSED
    finally:
        for worker in list(running.workers):
            running.kill(worker)
