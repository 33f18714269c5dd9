"""The operator's commands, as real processes against a real deployment: what they tell, what comes of what they ask, how they exit."""

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
from tests.support.chaos.attempts import assert_one_stream
from tests.support.fake_upstream import FakeUpstream, hang, reply, text
from tests.support.stack import ROOT, SHORT_LEASES, Databases, Stack, SuiteSettings, stack

DONE, REFUSED, USAGE, AWAY, PENDING = 0, 1, 2, 3, 4
PROMPT = {
    **SHORT_LEASES,
    "BACKBURNER_WORKER__GRACE": "0.2",
    "BACKBURNER_WORKER__FLUSH_INTERVAL": "0.1",
}


@dataclass(frozen=True)
class Ended:
    """A command that has run."""

    code: int | None
    out: str
    err: str

    @property
    def facts(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


async def as_process(arguments: tuple[str, ...], environment: dict[str, str]) -> Ended:
    """The command line as an operator runs it. A second of a core each, so only where the process itself is the question."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", *arguments),
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return Ended(process.returncode, out.decode(), err.decode())


async def in_thread(arguments: tuple[str, ...], environment: dict[str, str]) -> Ended:
    """The same commands, without an interpreter to start."""
    result = await asyncio.to_thread(
        CliRunner(env=environment).invoke, app, arguments, catch_exceptions=False
    )
    return Ended(result.exit_code, result.stdout, result.stderr)


async def backburner(
    one: Stack, *arguments: str, environment: dict[str, str] | None = None, process: bool = False
) -> Ended:
    """Runs the command line; whatever it says, a traceback is no answer, and neither is a secret."""
    ended = await (as_process if process else in_thread)(
        arguments, {**one.environment(), **(environment or {})}
    )
    assert "Traceback" not in ended.err, ended.err
    assert one.key not in ended.out + ended.err
    assert "upstream-secret" not in ended.out + ended.err
    return ended


async def told(one: Stack, *arguments: str, process: bool = False) -> Any:
    """The facts of a command that must succeed."""
    ended = await backburner(one, *arguments, "--json", process=process)
    assert (ended.code, ended.err) == (DONE, "")
    return ended.facts


@pytest.fixture(scope="module")
async def one(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """Two workers that nobody kills."""
    async with stack(
        tmp_path_factory.mktemp("operations"),
        database_server,
        suite_settings,
        fake,
        workers=2,
        settings=PROMPT,
    ) as one:
        yield one


async def test_explain_tells_an_ordinary_life_to_programs_and_to_people(
    one: Stack, fake: FakeUpstream
) -> None:
    name = await one.api().create_background(fake.script(reply("Hello.")))
    await one.api().wait_for_end(name)
    facts = await told(one, "explain", name, process=True)
    assert set(facts) == {"response", "journalled", "attempts", "timeline"}
    assert (facts["response"]["id"], facts["response"]["status"], facts["response"]["state"]) == (
        name,
        "completed",
        "ended",
    )
    assert [(attempt["attempt"], attempt["outcome"]) for attempt in facts["attempts"]] == [
        (1, None)
    ]
    assert [moment["what"] for moment in facts["timeline"]][:2] == ["created", "queued"]
    assert [moment["what"] for moment in facts["timeline"]][-1] == "ended"
    assert {"rung", "claimed", "last_flush"} <= {moment["what"] for moment in facts["timeline"]}
    said = await backburner(one, "explain", name)
    assert said.code == DONE
    assert f"attempt 1: claimed by worker process {facts['attempts'][0]['pid']} on" in said.out
    assert "ended as completed" in said.out


async def test_explain_says_of_a_remembered_answer_that_nobody_ran_it(
    one: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Hello."))
    hit = [await one.api().create(model, cache=True) for _ in range(2)][-1]
    facts = await told(one, "explain", hit["id"])
    assert [moment["what"] for moment in facts["timeline"]] == ["created", "ended"]
    assert (
        facts["timeline"][-1]["text"]
        == "ended as completed (its answer was known when it was created)"
    )


async def test_explain_names_what_a_response_goes_on_from(one: Stack, fake: FakeUpstream) -> None:
    room = (await one.api().call("POST", "/conversations", {})).body["id"]
    first = await one.api().create(fake.script(reply("x")), conversation=room)
    second = await one.api().create(fake.script(reply("x")), previous_response_id=first["id"])
    assert (await told(one, "explain", first["id"]))["response"]["conversation"] == room
    assert f", in {room}" in (await backburner(one, "explain", first["id"])).out
    assert f", after {first['id']}" in (await backburner(one, "explain", second["id"])).out


@pytest.mark.parametrize("command", ["explain", "requeue", "fail"])
@pytest.mark.parametrize("name", [UNKNOWN_RESPONSE_ID, "resp_1", "\N{SNOWMAN}' OR 1=1"])
async def test_an_id_that_nobody_has_is_refused_in_one_sentence(
    one: Stack, command: str, name: str
) -> None:
    ended = await backburner(one, command, name, "--json")
    assert (ended.code, ended.out, ended.err.count("\n")) == (REFUSED, "", 1)
    assert "there is no response" in ended.err


async def test_an_id_may_be_given_as_logs_write_it(one: Stack, fake: FakeUpstream) -> None:
    name = await one.api().create_background(fake.script(reply("Hello.")))
    await one.api().wait_for_end(name)
    assert (await told(one, "explain", name.removeprefix("resp_")))["response"]["id"] == name


async def test_workers_lists_who_lives_and_what_they_run(one: Stack, fake: FakeUpstream) -> None:
    model = fake.script([text("x"), hang()])
    name = await one.api().create_background(model)
    await until(lambda: fake.requests_for(model))
    listed = await told(one, "workers", process=True)
    assert sorted(each["kind"] for each in listed) == ["web", "worker", "worker"]
    assert {each["pid"] for each in listed} == {process.pid for process in one.started}
    assert {each["state"] for each in listed} == {"live"}
    assert all(0 < each["lease_seconds"] <= 3 for each in listed)
    assert sum(each["running"] for each in listed) == 1
    assert "LEASE LEFT" in (await backburner(one, "workers")).out
    await one.api().cancel(name)


async def test_a_requeued_response_goes_on_in_a_new_attempt(one: Stack, fake: FakeUpstream) -> None:
    model = fake.script([text("half"), hang()], reply("whole"))
    async with one.api().post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        ended = await backburner(one, "requeue", stream.response_id, "--json", process=True)
        assert (ended.code, ended.facts["acted"], ended.facts["request"]) == (DONE, True, "requeue")
        await stream.to_end()
        assert_one_stream(stream.frames)
        assert stream.final["output_text"] == "whole"
    first, second = fake.requests_for(model)
    assert first.closed_by_client is not None
    assert first.closed_by_client < second.started
    facts = await told(one, "explain", stream.response_id)
    assert [(attempt["attempt"], attempt["outcome"]) for attempt in facts["attempts"]] == [
        (1, "requeued"),
        (2, None),
    ]
    assert facts["response"]["deaths"] == 0


async def test_a_running_response_fails_at_an_operators_word_and_keeps_what_was_said(
    one: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("so far"), hang()])
    async with one.api().post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        ended = await backburner(one, "fail", stream.response_id, "--json", process=True)
        assert (ended.code, ended.facts["status"]) == (DONE, "failed")
        await stream.to_end()
        assert_one_stream(stream.frames)
    final = stream.final
    assert (final["status"], final["output_text"]) == ("failed", "so far")
    assert final["error"] == {
        "code": "server_error",
        "message": "The response was ended by the server's operator.",
    }
    assert (await told(one, "explain", stream.response_id))["response"][
        "reason"
    ] == "failed_by_operator"
    [request] = fake.requests_for(model)
    assert request.closed_by_client is not None


@pytest.mark.parametrize("command", ["fail", "requeue"])
async def test_what_has_ended_can_be_asked_for_nothing(
    one: Stack, fake: FakeUpstream, command: str
) -> None:
    name = await one.api().create_background(fake.script([text("x"), hang()]))
    await one.api().cancel(name)
    ended = await backburner(one, command, name)
    assert ended.code == REFUSED
    assert "has ended already, as cancelled" in ended.err
    assert (await one.api().get(name))["status"] == "cancelled"


async def test_nothing_is_stuck_while_all_is_well_and_a_silent_upstream_is_seen(
    one: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("x"), hang()])
    name = await one.api().create_background(model)
    await until(lambda: fake.requests_for(model))
    assert await told(one, "stuck", process=True) == {
        "idle_seconds": 30,
        "responses": [],
        "more": False,
    }
    assert "no open response" in (await backburner(one, "stuck")).out
    listed = (await told(one, "stuck", "--idle", "0"))["responses"]
    assert [(each["id"], each["state"]) for each in listed if each["id"] == name] == [
        (name, "running")
    ]
    await one.api().cancel(name)


async def test_a_drain_of_nobody_and_of_several_is_refused(one: Stack) -> None:
    for name, why in (("nowhere", "no live process"), (str(new_uuid()), "no live process")):
        ended = await backburner(one, "drain", name)
        assert ended.code == REFUSED
        assert why in ended.err
    shared_stack = str((await told(one, "workers"))[0]["id"])[:6]
    ended = await backburner(one, "drain", shared_stack)
    assert ended.code == REFUSED
    assert "give more of it" in ended.err
    assert all(process.running() for process in one.started)


@pytest.mark.parametrize(
    "command",
    [
        ["explain", UNKNOWN_RESPONSE_ID],
        ["stuck"],
        ["workers"],
        ["requeue", UNKNOWN_RESPONSE_ID],
        ["fail", UNKNOWN_RESPONSE_ID],
        ["drain", "x"],
    ],
)
async def test_without_a_database_each_command_says_so_in_one_sentence(
    one: Stack, command: list[str]
) -> None:
    nowhere = {"DATABASE_URL": f"postgresql://backburner:hush-hush@127.0.0.1:{free_port()}/none"}
    ended = await backburner(one, *command, environment=nowhere, process=command == ["stuck"])
    assert (ended.code, ended.out, ended.err.count("\n")) == (AWAY, "", 1)
    assert "the database did not answer" in ended.err
    assert "hush-hush" not in ended.err


async def test_wrong_usage_has_an_exit_code_of_its_own(one: Stack) -> None:
    assert (await backburner(one, "explain", process=True)).code == USAGE
    assert (await backburner(one, "stuck", "--idle", "-1")).code == USAGE


@pytest.mark.long
async def test_a_life_of_deaths_and_drains_can_be_told(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    halves = [[text("half"), hang()], [text("half"), hang()]]
    model, doomed = fake.script(*halves, reply("whole")), fake.script(reply("never"))
    async with private_stack(workers=0, settings=PROMPT) as one:
        name, failing = (
            await one.api().create_background(model),
            await one.api().create_background(doomed),
        )
        listed = (await told(one, "stuck", "--idle", "0"))["responses"]
        assert {each["id"]: each["state"] for each in listed} == {
            name: "no_worker",
            failing: "no_worker",
        }
        asked = await backburner(one, "fail", failing, "--wait", "0", "--json")
        assert (asked.code, asked.facts["acted"], asked.facts["status"]) == (
            PENDING,
            False,
            "queued",
        )

        first = await one.start_worker()
        assert (await one.api().wait_for_end(failing))["error"][
            "message"
        ] == "The response was ended by the server's operator."
        assert not fake.requests_for(doomed)
        await until(lambda: len(fake.requests_for(model)) == 1)
        await until(
            lambda: one.value(
                "SELECT max(last_number) > 2 FROM event_log WHERE response_id = %s",
                name.removeprefix("resp_"),
            )
        )
        one.kill(first)
        silent = await until(
            lambda: _state(one, name, "owner_silent", "no_worker", "orphaned"), 15, every=0.2
        )
        assert silent["response"]["status"] == "in_progress"

        second = await one.start_worker()
        await until(lambda: len(fake.requests_for(model)) == 2, 20)
        worker = next(each for each in await told(one, "workers") if each["pid"] == second.pid)
        third = await one.start_worker()
        one.workers.remove(second)
        drained = await backburner(one, "drain", worker["id"], "--json", process=True)
        assert (drained.code, [(each["id"], each["gone"]) for each in drained.facts]) == (
            DONE,
            [(worker["id"], True)],
        )
        await until(lambda: not second.running())
        assert second.exit_code() == 0
        assert (await one.api().wait_for_end(name))["output_text"] == "whole"

        facts = await told(one, "explain", name)
        assert [(attempt["pid"], attempt["outcome"]) for attempt in facts["attempts"]] == [
            (first.pid, "died"),
            (second.pid, "handed_over"),
            (third.pid, None),
        ]
        story = [
            moment["what"]
            for moment in facts["timeline"]
            if moment["what"] in {"claimed", "died", "handed_over", "ended"}
        ]
        assert story == ["claimed", "died", "claimed", "handed_over", "claimed", "ended"]
        assert facts["response"]["deaths"] == 1
        states = {
            each["pid"]: (each["state"], each["ended"]) for each in await told(one, "workers")
        }
        assert states[second.pid] == ("dead", "stopped")
        assert states[first.pid][0] == "dead"
        assert states[first.pid][1].startswith("reaped by")
        assert_one_stream(await one.api().replay(name))


async def _state(one: Stack, name: str, *expected: str) -> Any:
    facts = await told(one, "explain", name)
    return facts if facts["response"]["state"] in expected else None
