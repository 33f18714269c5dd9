"""The operator's commands, run against a real deployment: output, effects and exit codes."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.embedded.process import free_port
from cli.main import app
from models.ids import new_uuid
from tests.conftest import PrivateStack
from tests.support.api import UNKNOWN_RESPONSE_ID, until
from tests.support.audit import audit_entries
from tests.support.chaos.attempts import assert_one_stream
from tests.support.fake_upstream import (
    FakeUpstream,
    delta,
    done,
    finish,
    hang,
    reply,
    status,
    text,
)
from tests.support.stack import ROOT, SHORT_LEASES, Databases, Stack, SuiteSettings, stack

DONE, REFUSED, USAGE, DATABASE_DOWN, PENDING, NOT_COMPLETED = 0, 1, 2, 3, 4, 5
FAST = {
    **SHORT_LEASES,
    "BACKBURNER_WORKER__GRACE": "0.2",
    "BACKBURNER_WORKER__FLUSH_INTERVAL": "0.1",
}


@dataclass(frozen=True)
class CommandResult:
    """The result of a command that has ended."""

    code: int | None
    out: str
    err: str

    @property
    def facts(self) -> Any:
        """Its JSON output."""
        return json.loads(self.out)


async def as_process(arguments: tuple[str, ...], environment: dict[str, str]) -> CommandResult:
    """Runs the command line as an operator does. Use it sparingly: a start costs a second."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", *arguments),
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return CommandResult(process.returncode, out.decode(), err.decode())


async def in_thread(arguments: tuple[str, ...], environment: dict[str, str]) -> CommandResult:
    """Runs the same command in a thread, without a new interpreter."""
    result = await asyncio.to_thread(
        CliRunner(env=environment).invoke, app, arguments, catch_exceptions=False
    )
    return CommandResult(result.exit_code, result.stdout, result.stderr)


async def backburner(
    own_stack: Stack,
    *arguments: str,
    environment: dict[str, str] | None = None,
    process: bool = False,
) -> CommandResult:
    """Runs the command line; fails if it prints a traceback or a secret."""
    result = await (as_process if process else in_thread)(
        arguments, {**own_stack.environment(), **(environment or {})}
    )
    assert "Traceback" not in result.err, result.err
    assert own_stack.key not in result.out + result.err
    assert "upstream-secret" not in result.out + result.err
    return result


async def command_facts(own_stack: Stack, *arguments: str, process: bool = False) -> Any:
    """Returns the JSON output of a command that must succeed."""
    result = await backburner(own_stack, *arguments, "--json", process=process)
    assert (result.code, result.err) == (DONE, "")
    return result.facts


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment with two workers; its tests kill none of them."""
    async with stack(
        tmp_path_factory.mktemp("operations"),
        database_server,
        suite_settings,
        fake,
        workers=2,
        settings=FAST,
    ) as own_stack:
        yield own_stack


async def test_explain_shows_an_ordinary_response_as_json_and_as_text(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    response_id = await own_stack.api().create_background(fake.script(reply("Hello.")))
    await own_stack.api().wait_for_end(response_id)
    facts = await command_facts(own_stack, "explain", response_id, process=True)
    assert set(facts) == {"response", "journalled", "attempts", "timeline"}
    assert (facts["response"]["id"], facts["response"]["status"], facts["response"]["state"]) == (
        response_id,
        "completed",
        "ended",
    )
    assert [(attempt["attempt"], attempt["outcome"]) for attempt in facts["attempts"]] == [
        (1, None)
    ]
    assert [moment["what"] for moment in facts["timeline"]][:2] == ["created", "queued"]
    assert [moment["what"] for moment in facts["timeline"]][-1] == "ended"
    assert {"rung", "claimed", "last_flush"} <= {moment["what"] for moment in facts["timeline"]}
    text_result = await backburner(own_stack, "explain", response_id)
    assert text_result.code == DONE
    assert (
        f"attempt 1: claimed by worker process {facts['attempts'][0]['pid']} on" in text_result.out
    )
    assert "ended as completed" in text_result.out


async def test_explain_shows_that_a_cached_answer_was_not_run(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Hello."))
    cached = [await own_stack.api().create(model, cache=True) for _ in range(2)][-1]
    facts = await command_facts(own_stack, "explain", cached["id"])
    assert [moment["what"] for moment in facts["timeline"]] == ["created", "ended"]
    assert (
        facts["timeline"][-1]["text"]
        == "ended as completed (answered from the cache, or a warm-up)"
    )


async def test_explain_names_what_a_response_continues(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    conversation = (await own_stack.api().call("POST", "/conversations", {})).body["id"]
    first = await own_stack.api().create(fake.script(reply("x")), conversation=conversation)
    second = await own_stack.api().create(fake.script(reply("x")), previous_response_id=first["id"])
    assert (await command_facts(own_stack, "explain", first["id"]))["response"][
        "conversation"
    ] == conversation
    assert f", in {conversation}" in (await backburner(own_stack, "explain", first["id"])).out
    assert f", after {first['id']}" in (await backburner(own_stack, "explain", second["id"])).out


@pytest.mark.parametrize("command", ["explain", "responses show"])
@pytest.mark.parametrize("response_id", [UNKNOWN_RESPONSE_ID, "resp_1", "\N{SNOWMAN}' OR 1=1"])
async def test_an_unknown_id_is_refused_in_one_sentence(
    own_stack: Stack, command: str, response_id: str
) -> None:
    result = await backburner(own_stack, *command.split(), response_id, "--json")
    assert (result.code, result.out, result.err.count("\n")) == (REFUSED, "", 1)
    assert "there is no response" in result.err


async def test_an_id_is_accepted_in_the_form_that_logs_write(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    response_id = await own_stack.api().create_background(fake.script(reply("Hello.")))
    await own_stack.api().wait_for_end(response_id)
    assert (await command_facts(own_stack, "explain", response_id.removeprefix("resp_")))[
        "response"
    ]["id"] == response_id


async def test_workers_lists_live_processes_and_what_they_run(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("x"), hang()])
    response_id = await own_stack.api().create_background(model)
    await until(lambda: fake.requests_for(model))
    listed = await command_facts(own_stack, "workers", process=True)
    assert sorted(each["kind"] for each in listed) == ["web", "worker", "worker"]
    assert {each["pid"] for each in listed} == {process.pid for process in own_stack.started}
    assert {each["state"] for each in listed} == {"live"}
    assert all(0 < each["lease_seconds"] <= 3 for each in listed)
    assert sum(each["running"] for each in listed) == 1
    assert "LEASE" in (await backburner(own_stack, "workers")).out
    await own_stack.api().cancel(response_id)


async def test_a_requeued_response_continues_in_a_new_attempt(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("half"), hang()], reply("whole"))
    async with own_stack.api().post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        result = await backburner(
            own_stack, "responses", "requeue", stream.response_id, "--json", process=True
        )
        [request] = result.facts
        assert (result.code, request["acted"], request["request"]) == (DONE, True, "requeue")
        await stream.to_end()
        assert_one_stream(stream.frames)
        assert stream.final["output_text"] == "whole"
    first, second = fake.requests_for(model)
    assert first.closed_by_client is not None
    assert first.closed_by_client < second.started
    facts = await command_facts(own_stack, "explain", stream.response_id)
    assert [(attempt["attempt"], attempt["outcome"]) for attempt in facts["attempts"]] == [
        (1, "requeued"),
        (2, None),
    ]
    assert facts["response"]["crashes"] == 0


async def test_a_running_response_that_an_operator_fails_keeps_its_output(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("so far"), hang()])
    async with own_stack.api().post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        result = await backburner(
            own_stack, "responses", "fail", stream.response_id, "--json", process=True
        )
        assert (result.code, result.facts[0]["status"]) == (DONE, "failed")
        await stream.to_end()
        assert_one_stream(stream.frames)
    final = stream.final
    assert (final["status"], final["output_text"]) == ("failed", "so far")
    assert final["error"] == {
        "code": "server_error",
        "message": "The response was ended by the server's operator.",
    }
    assert (await command_facts(own_stack, "explain", stream.response_id))["response"][
        "reason"
    ] == "failed_by_operator"
    [request] = fake.requests_for(model)
    assert request.closed_by_client is not None


@pytest.mark.parametrize("command", ["fail", "requeue"])
async def test_an_ended_response_can_be_neither_failed_nor_requeued(
    own_stack: Stack, fake: FakeUpstream, command: str
) -> None:
    response_id = await own_stack.api().create_background(fake.script([text("x"), hang()]))
    await own_stack.api().cancel(response_id)
    result = await backburner(own_stack, "responses", command, response_id)
    assert result.code == REFUSED
    assert "has already ended as cancelled" in result.out
    assert (await own_stack.api().get(response_id))["status"] == "cancelled"


async def test_responses_are_listed_by_what_is_known_of_them(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    done_model, failed_model = fake.script(reply("Hello.")), fake.script([status(400)])
    done = await own_stack.api().create(done_model)
    failed_id = await own_stack.api().create_background(failed_model)
    await own_stack.api().wait_for_end(failed_id)

    async def ids(*arguments: str) -> set[str]:
        listed = await command_facts(own_stack, "responses", "list", *arguments)
        return {each["id"] for each in listed["responses"]}

    assert await ids("--model", done_model) == {done["id"]}
    by_reason = ("--reason", "upstream_400", "--status", "failed", "--status", "cancelled")
    assert await ids("--model", failed_model, *by_reason) == {failed_id}
    assert {done["id"], failed_id} <= await ids("--project", "default", "--since", "1h")
    assert await ids("--upstream", "default", "--model", done_model) == {done["id"]}
    for nothing in (["--project", "none*"], ["--since", "0"], ["--upstream", "none"]):
        assert await ids("--model", done_model, *nothing) == set()
    typo = await backburner(own_stack, "responses", "list", "--project", "defualt")
    assert (typo.code, "Did you mean default?" in typo.err) == (REFUSED, True)
    newest = await command_facts(own_stack, "responses", "list", "--limit", "1")
    assert newest["more"] is True
    [listed] = newest["responses"]
    assert (listed["id"], listed["status"], listed["reason"]) == (
        failed_id,
        "failed",
        "upstream_400",
    )
    assert f"{failed_id}  failed" in (await backburner(own_stack, "responses", "list")).out
    assert (await backburner(own_stack, "responses", "list", "--status", "x")).code == USAGE

    async def failures() -> Any:
        [attempt] = (await command_facts(own_stack, "explain", failed_id))["attempts"]
        return attempt["failures"]

    [failure] = await until(failures, 5)
    assert (failure["upstream"], failure["reason"], failure["tries"]) == (
        "default",
        "upstream_400",
        1,
    )
    assert failure["message"] == "The upstream refused the request: The fake upstream says 400."
    explained = await backburner(own_stack, "explain", failed_id)
    assert "attempt 1: upstream default failed (upstream_400): The upstream" in explained.out
    assert (await backburner(own_stack, "responses", "list", "--since", "x")).code == USAGE


async def test_content_in_an_unknown_field_is_explained(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    steps = [delta({"field_of_next_year": "x"}), text("Hi"), delta({"field_of_next_year": "y"})]
    response = await own_stack.api().create(fake.script([*steps, finish(), done()]))
    assert response["status"] == "completed"

    async def explained() -> Any:
        facts = await command_facts(own_stack, "explain", response["id"])
        return [event for event in facts["timeline"] if event["what"] == "unknown_content"]

    [event] = await until(explained, 5)
    assert "delta.field_of_next_year" in event["text"]
    assert "failed" not in event["text"]


async def test_a_response_is_shown_by_the_beginning_of_its_id(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    response = await own_stack.api().create(fake.script(reply("Hello.")))
    short_id = response["id"][: len("resp_") + 16]
    for name in (short_id, short_id.removeprefix("resp_")):
        shown = await command_facts(own_stack, "responses", "show", name, "--output")
        assert (shown["id"], shown["status"], shown["output"]) == (
            response["id"],
            "completed",
            response["output"],
        )
    text_result = await backburner(own_stack, "responses", "show", short_id, "--output")
    await command_facts(own_stack, "responses", "show", short_id)
    entries = await audit_entries(own_stack, object=response["id"], action="response.reveal")
    assert [(entry["actor"], entry["project"]) for entry in entries] == [
        ("operator", "default")
    ] * 3
    assert "    Hello." in text_result.out.split("\n")
    ambiguous = await backburner(own_stack, "explain", short_id[: len("resp_") + 6])
    assert ambiguous.code == REFUSED
    assert "more than one response's id" in ambiguous.err


async def test_a_cancel_by_an_operator_is_the_cancel_of_the_api(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("so far"), hang()], [text("so far"), hang()])
    async with own_stack.api().post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        other = await own_stack.api().create_background(model)
        planned = await backburner(own_stack, "responses", "cancel", "--model", model)
        assert planned.code == REFUSED
        assert (stream.response_id in planned.out, other in planned.out) == (True, True)
        assert "With --yes: cancel 2 responses." in planned.err
        assert (await own_stack.api().get(other))["status"] != "cancelled"
        by_filter = ("responses", "cancel", "--model", model, "--yes")
        done = await command_facts(own_stack, *by_filter)
        assert {(each["id"], each["acted"], each["status"]) for each in done} == {
            (stream.response_id, True, "cancelled"),
            (other, True, "cancelled"),
        }
        await stream.to_end()
        assert_one_stream(stream.frames)
        assert (stream.final["status"], stream.final["output_text"]) == ("cancelled", "so far")
    assert "No open response fits" in (await backburner(own_stack, *by_filter)).err
    again = await command_facts(own_stack, "responses", "cancel", other)
    assert [(each["acted"], each["refused"]) for each in again] == [(True, False)]


async def test_an_action_for_several_responses_reports_each(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("half"), hang()])
    response_id = await own_stack.api().create_background(model)
    await until(lambda: fake.requests_for(model))
    ended = await own_stack.api().create(fake.script(reply("Hello.")))
    result = await backburner(
        own_stack, "responses", "fail", response_id, ended["id"], UNKNOWN_RESPONSE_ID, "--json"
    )
    assert result.code == REFUSED
    assert [(each["id"], each["acted"], each["refused"]) for each in result.facts] == [
        (response_id, True, False),
        (ended["id"], False, True),
    ]
    assert "already ended as completed" in result.facts[1]["why"]
    assert f"there is no response {UNKNOWN_RESPONSE_ID}" in result.err
    requeued = await backburner(own_stack, "responses", "requeue", ended["id"])
    assert (requeued.code, "already ended as completed" in requeued.out) == (REFUSED, True)
    for wrong in (["cancel"], ["fail", response_id, "--model", model]):
        assert (await backburner(own_stack, "responses", *wrong)).code == USAGE


async def test_a_response_is_followed_to_its_end(own_stack: Stack, fake: FakeUpstream) -> None:
    model = fake.script([text("one "), text("two\n\x1b[2Jthree"), hang()])
    async with own_stack.api().post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        tail = asyncio.create_task(
            as_process(("responses", "tail", stream.response_id, "--json"), own_stack.environment())
        )
        await own_stack.api().cancel(stream.response_id)
        await stream.to_end()
        followed = await tail
    assert (followed.code, followed.err) == (DONE, "")
    events = [json.loads(line) for line in followed.out.splitlines()]
    assert events == [json.loads(frame.partition(b"\ndata: ")[2]) for frame in stream.frames]
    replayed = await backburner(own_stack, "responses", "tail", stream.response_id, "--after", "4")
    entries = await audit_entries(own_stack, object=stream.response_id, action="response.reveal")
    assert len(entries) == 2
    lines = replayed.out.split("\n")
    assert lines[:3] == [
        "     5  response.output_text.delta",
        "        one two",
        "         [2Jthree",
    ]
    assert lines[-2].endswith("response.failed  (cancelled)")


async def test_watch_follows_a_response_to_its_end(own_stack: Stack, fake: FakeUpstream) -> None:
    api = own_stack.api()
    ended = await api.create_background(fake.script(reply("Hello.")))
    await api.wait_for_end(ended)
    shown = await backburner(own_stack, "responses", "watch", ended)
    assert (shown.code, shown.err) == (DONE, "")
    assert shown.out.startswith(f"{ended}  completed  ")
    response_id = await api.create_background(
        fake.script([text("so far"), hang()]), max_output_tokens=100
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", "responses", "watch", response_id, "--json"),
        cwd=ROOT,
        env=own_stack.environment(),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    lines = []
    async with asyncio.timeout(60):
        while line := await process.stdout.readline():
            lines.append(json.loads(line))
            progress = lines[-1]["progress"]
            if progress is not None and progress["output_tokens"] == 2:
                await api.cancel(response_id)
        code = await process.wait()
    assert code == NOT_COMPLETED
    assert lines[-2]["progress"]["estimated_output_tokens"] == 2
    assert lines[-1] == {"id": response_id, "status": "cancelled", "progress": None}
    unknown = await backburner(own_stack, "responses", "watch", UNKNOWN_RESPONSE_ID)
    assert (unknown.code, "there is no response" in unknown.err) == (REFUSED, True)


async def test_a_revoked_key_is_refused_and_keys_are_listed_without_their_secret(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    unknown = await backburner(own_stack, "keys", "create", "--project", "other")
    assert (unknown.code, "`backburner projects create" in unknown.err) == (REFUSED, True)
    await backburner(own_stack, "projects", "create", "other")
    created = await backburner(own_stack, "keys", "create", "--project", "other")
    key = created.out.strip()
    listed = await command_facts(own_stack, "keys", "list", "--project", "other")
    [listed_key] = [each for each in listed if each["prefix"] == key[:8]]
    assert (listed_key["project"], listed_key["last_used_at"]) == ("other", None)
    assert key not in (await backburner(own_stack, "keys", "list")).out
    revoked = await backburner(own_stack, "keys", "revoke", listed_key["id"][:18])
    assert (revoked.code, revoked.out) == (DONE, f"{key[:8]}… of the project other is revoked\n")
    assert (await own_stack.api(key=key).call("GET", "/models")).status == 401
    again = await backburner(own_stack, "keys", "revoke", key[:8])
    assert (again.code, "was revoked at" in again.err) == (REFUSED, True)
    unknown = await backburner(own_stack, "keys", "revoke", "bb-12345")
    assert (unknown.code, "there is no key" in unknown.err) == (REFUSED, True)


async def test_stuck_lists_a_silent_response_only_after_the_idle_time(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("x"), hang()])
    response_id = await own_stack.api().create_background(model)
    await until(lambda: fake.requests_for(model))
    assert await command_facts(own_stack, "stuck", process=True) == {
        "idle_seconds": 30,
        "responses": [],
        "more": False,
    }
    assert "no open response" in (await backburner(own_stack, "stuck")).out
    listed = (await command_facts(own_stack, "stuck", "--idle", "0"))["responses"]
    assert [(each["id"], each["state"]) for each in listed if each["id"] == response_id] == [
        (response_id, "running")
    ]
    await own_stack.api().cancel(response_id)


async def test_a_drain_needs_an_id_that_matches_exactly_one_process(own_stack: Stack) -> None:
    for process_id in ("nowhere", str(new_uuid())):
        result = await backburner(own_stack, "drain", process_id)
        assert result.code == REFUSED
        assert "no live process" in result.err
    ambiguous_id = str((await command_facts(own_stack, "workers"))[0]["id"])[:6]
    result = await backburner(own_stack, "drain", ambiguous_id)
    assert result.code == REFUSED
    assert "use a longer one" in result.err
    assert all(process.running() for process in own_stack.started)


@pytest.mark.parametrize(
    "command",
    [
        ["explain", UNKNOWN_RESPONSE_ID],
        ["stuck"],
        ["workers"],
        ["responses", "requeue", UNKNOWN_RESPONSE_ID],
        ["responses", "watch", UNKNOWN_RESPONSE_ID],
        ["drain", "x"],
    ],
)
async def test_without_a_database_each_command_fails_with_one_sentence(
    own_stack: Stack, command: list[str]
) -> None:
    unreachable = {
        "DATABASE_URL": f"postgresql://backburner:hush-hush@127.0.0.1:{free_port()}/none"
    }
    result = await backburner(
        own_stack, *command, environment=unreachable, process=command == ["stuck"]
    )
    assert (result.code, result.out, result.err.count("\n")) == (DATABASE_DOWN, "", 1)
    assert "the database did not answer" in result.err
    assert "hush-hush" not in result.err


async def test_wrong_usage_has_an_exit_code_of_its_own(own_stack: Stack) -> None:
    assert (await backburner(own_stack, "explain", process=True)).code == USAGE
    assert (await backburner(own_stack, "stuck", "--idle", "-1")).code == USAGE


@pytest.mark.long
async def test_explain_shows_a_life_with_deaths_and_drains(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    unfinished = [[text("half"), hang()], [text("half"), hang()]]
    model, doomed_model = fake.script(*unfinished, reply("whole")), fake.script(reply("never"))
    async with private_stack(workers=0, settings=FAST) as own_stack:
        response_id, doomed_id = (
            await own_stack.api().create_background(model),
            await own_stack.api().create_background(doomed_model),
        )
        listed = (await command_facts(own_stack, "stuck", "--idle", "0"))["responses"]
        assert {each["id"]: each["state"] for each in listed} == {
            response_id: "no_worker",
            doomed_id: "no_worker",
        }
        cancelled_id = await own_stack.api().create_background(doomed_model)
        waits = await backburner(
            own_stack, "responses", "cancel", cancelled_id, "--wait", "0", "--json"
        )
        assert (waits.code, waits.facts[0]["acted"]) == (PENDING, False)
        pending = await backburner(
            own_stack, "responses", "fail", doomed_id, "--wait", "0", "--json"
        )
        [request] = pending.facts
        assert (pending.code, request["acted"], request["status"]) == (PENDING, False, "queued")

        first = await own_stack.start_worker()
        assert (await own_stack.api().wait_for_end(doomed_id))["error"][
            "message"
        ] == "The response was ended by the server's operator."
        assert (await own_stack.api().wait_for_end(cancelled_id))["status"] == "cancelled"
        ends = await until(
            # The line is written after the end is stored.
            lambda: [line for line in first.log.read_text().splitlines() if cancelled_id in line]
        )
        assert ["response_ended" in line for line in ends] == [True]
        assert not fake.requests_for(doomed_model)
        await until(lambda: len(fake.requests_for(model)) == 1)
        await until(
            lambda: own_stack.value(
                "SELECT max(last_number) > 2 FROM event_log WHERE response_id = %s",
                response_id.removeprefix("resp_"),
            )
        )
        own_stack.kill(first)
        orphaned = await until(
            lambda: _state(own_stack, response_id, "owner_silent", "no_worker", "orphaned"),
            15,
            every=0.2,
        )
        assert orphaned["response"]["status"] == "in_progress"

        second = await own_stack.start_worker()
        await until(lambda: len(fake.requests_for(model)) == 2, 20)
        worker = next(
            each for each in await command_facts(own_stack, "workers") if each["pid"] == second.pid
        )
        third = await own_stack.start_worker()
        own_stack.workers.remove(second)
        drain_result = await backburner(own_stack, "drain", worker["id"], "--json", process=True)
        assert (drain_result.code, [(each["id"], each["gone"]) for each in drain_result.facts]) == (
            DONE,
            [(worker["id"], True)],
        )
        await until(lambda: not second.running())
        assert second.exit_code() == 0
        assert (await own_stack.api().wait_for_end(response_id))["output_text"] == "whole"

        facts = await command_facts(own_stack, "explain", response_id)
        assert [(attempt["pid"], attempt["outcome"]) for attempt in facts["attempts"]] == [
            (first.pid, "died"),
            (second.pid, "handed_over"),
            (third.pid, None),
        ]
        moments = [
            moment["what"]
            for moment in facts["timeline"]
            if moment["what"] in {"claimed", "died", "handed_over", "ended"}
        ]
        assert moments == ["claimed", "died", "claimed", "handed_over", "claimed", "ended"]
        assert facts["response"]["crashes"] == 1
        states = {
            each["pid"]: (each["state"], each["ended"])
            for each in await command_facts(own_stack, "workers")
        }
        assert states[second.pid] == ("stopped", "stopped")
        assert states[first.pid][0] == "dead"
        assert states[first.pid][1].startswith("reaped by")
        assert_one_stream(await own_stack.api().replay(response_id))


async def _state(own_stack: Stack, response_id: str, *expected: str) -> Any:
    facts = await command_facts(own_stack, "explain", response_id)
    return facts if facts["response"]["state"] in expected else None
