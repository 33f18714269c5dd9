"""Several upstreams behind one server: which of them a model's turns are put to, and what happens while one of them is down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cli.embedded.process import free_port
from tests.conftest import PrivateStack
from tests.integration.operator.test_operations import backburner
from tests.support.api import Api, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    chunk,
    delta,
    done,
    drop,
    finish,
    hang,
    raw,
    reply,
    reset,
    silence_until,
    status,
    text,
    wait_for,
)
from tests.support.mcp_servers import McpServers
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, item_statuses, tool_turn

FILE = """
[upstreams.first]
base_url = "{first}"
api_key_env = "FIRST_KEY"
passthrough = ["top_k"]
max_retries = 0
first_token = 0.7
circuit_failures = 3
circuit_pause = 0.5

[upstreams.second]
base_url = "{second}"
api_key = "key-of-the-second"
max_tokens_field = "max_tokens"
headers = {{ x-title = "Backburner" }}
query = {{ api-version = "7" }}

[upstreams.gone]
base_url = "http://127.0.0.1:{closed}/v1"
max_retries = 0
circuit_failures = 2
circuit_pause = 0.5

[upstreams.narrow]
base_url = "{first}"
concurrency = 1
wait = 0.2

[routes]
"*-both" = ["first", "second"]
"first-*" = "first"
"first-but-*" = "second"
"second-*" = "second"
"house-model" = {{ upstream = "second", model = "its-real-name" }}
"local/*" = [{{ upstream = "first", model = "*" }}, {{ upstream = "second", model = "as-*" }}]
"gone-*" = "gone"
"gone-or-*" = ["gone", "second"]
"narrow-*" = "narrow"
"""


@dataclass(frozen=True, slots=True)
class House:
    """A deployment with two upstreams that answer and one that does not."""

    stack: Stack
    first: FakeUpstream
    second: FakeUpstream
    closed: int
    """The port of the upstream that is gone."""

    @property
    def api(self) -> Api:
        return self.stack.api()

    def script(self, name: str, first: Script, second: Script | None = None) -> str:
        """What both say about the model of this name."""
        self.first.script(first, name=name)
        if second is not None:
            self.second.script(second, name=name)
        return name

    async def served_by(self, response_id: str) -> str | None:
        """The upstream that the row names."""
        found = await self.stack.value(
            "SELECT upstream FROM responses WHERE id = %s", response_id.removeprefix("resp_")
        )
        return None if found is None else str(found)


@pytest.fixture(scope="module")
async def house(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("routing")
    async with AsyncExitStack() as context:
        first, second = [await context.enter_async_context(FakeUpstream()) for _ in range(2)]
        closed = free_port()
        (folder / "backburner.toml").write_text(
            FILE.format(first=first.base_url, second=second.base_url, closed=closed)
        )
        file = str(folder / "backburner.toml")
        told = {
            **TOOL_SETTINGS,
            "BACKBURNER_CONFIG": file,
            "FIRST_KEY": "key-of-the-first",
            "BACKBURNER_LEASE__SWEEP": "0.2",
        }
        one = await context.enter_async_context(
            stack(folder, database_server, suite_settings, fake, settings=told)
        )
        yield House(one, first, second, closed)
        assert not first.faults, first.faults
        assert not second.faults, second.faults


# --- which upstream ---


async def test_the_most_specific_route_counts_and_each_upstream_gets_its_own_key(
    house: House,
) -> None:
    for model, asked, other in (
        ("first-x", house.first, house.second),
        ("first-but-x", house.second, house.first),
    ):
        asked.script(reply(f"by {model}"), name=model)
        response = await house.api.create(model, max_output_tokens=50)
        assert (response["model"], response["output_text"]) == (model, f"by {model}")
        assert not other.requests_for(model)
    [to_first], [to_second] = (
        house.first.requests_for("first-x"),
        house.second.requests_for("first-but-x"),
    )
    assert to_first.headers["authorization"] == "Bearer key-of-the-first"
    assert to_second.headers["authorization"] == "Bearer key-of-the-second"
    assert (to_first.body["max_completion_tokens"], to_second.body["max_tokens"]) == (50, 50)
    assert (to_second.headers["x-title"], to_second.query) == ("Backburner", "api-version=7")


async def test_an_alias_is_sent_under_the_name_it_stands_for_and_shown_under_its_own(
    house: House,
) -> None:
    house.second.script(reply("Yes."), name="its-real-name")
    response = await house.api.create("house-model")
    assert (response["model"], response["output_text"]) == ("house-model", "Yes.")
    house.first.script([status(500)], name="llama")
    house.second.script(reply("Second."), name="as-llama")
    response = await house.api.create("local/llama")
    assert (response["model"], response["output_text"]) == ("local/llama", "Second.")
    house.first.script(
        [
            status(
                404,
                {
                    "error": {
                        "message": "no model",
                        "type": "x",
                        "param": "model",
                        "code": "model_not_found",
                    }
                },
            )
        ],
        name="nil",
    )
    answer = await house.api.call("POST", "/responses", {"model": "local/nil", "input": "Hi."})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "model_not_found",
        "model",
    )
    assert "'local/nil'" in answer.error["message"]


@pytest.mark.parametrize(
    "how", [{}, {"stream": True}, {"background": True}], ids=["plain", "stream", "background"]
)
async def test_a_model_that_no_route_leads_to_is_refused_at_create(
    house: House, how: dict[str, Any]
) -> None:
    answer = await house.api.call("POST", "/responses", {"model": "nobodys", "input": "Hi.", **how})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "model_not_found",
        "model",
    )
    assert "'nobodys'" in answer.error["message"]


async def test_passthrough_is_the_routed_upstreams_own(house: House) -> None:
    house.script("passed-both", [status(500)], reply("Second."))
    assert (await house.api.create("passed-both", top_k=7))["output_text"] == "Second."
    [to_first], [to_second] = (
        house.first.requests_for("passed-both"),
        house.second.requests_for("passed-both"),
    )
    assert to_first.body["top_k"] == 7
    assert "top_k" not in to_second.body
    answer = await house.api.call(
        "POST", "/responses", {"model": "second-x", "input": "Hi.", "top_k": 7}
    )
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "unknown_parameter",
        "top_k",
    )


async def test_what_is_listed_is_what_is_routed(house: House) -> None:
    house.first.script(reply("x"), name="first-listed")
    house.second.script(reply("x"), name="as-listed")
    house.second.script(
        reply("x"), name="first-listed"
    )  # a route that is more specific for nobody: not the second's
    house.second.script(reply("x"), name="unrouted")
    answer = await house.api.call("GET", "/models")
    assert answer.status == 200, "one upstream that is gone hides nothing"
    listed = {model["id"]: model for model in answer.body["data"]}
    assert {"house-model", "first-listed", "local/first-listed", "local/listed"} <= set(listed)
    assert not {"unrouted", "resident", "as-listed", "its-real-name", "*"} & set(listed)
    assert listed["house-model"] == {
        "id": "house-model",
        "object": "model",
        "created": 0,
        "owned_by": "second",
    }
    assert (await house.api.call("GET", "/models/local%2Flisted")).body == listed["local/listed"]
    asked = len([request for request in house.first.requests if request.path == "/v1/models"])
    await house.api.call("GET", "/models")
    assert (
        len([request for request in house.first.requests if request.path == "/v1/models"]) == asked
    ), "the list is remembered"


# --- the next one before the first word ---

SILENT = asyncio.Event()
OTHERS_FAULT: dict[str, Script] = {
    "500": [status(500)],
    "503": [status(503, b"<html>down</html>", {"content-type": "text/html"})],
    "429": [status(429, headers={"retry-after": "9"})],
    "401": [status(401)],
    "404-of-the-address": [status(404, {"detail": "Not Found"})],
    "307": [status(307, headers={"location": "http://127.0.0.1:1/v1"})],
    "reset": [reset()],
    "reset-after-the-head": [raw(b": hello\n\n"), reset()],
    "hung-up-after-the-role": [delta({"role": "assistant", "content": ""}), drop()],
    "silent": [silence_until(SILENT)],
    "silent-after-the-head": [delta({"role": "assistant"}), hang()],
    "an-error-in-the-stream": [chunk({"error": {"message": "Out of memory.", "code": 500}})],
    "nothing-at-all": [done()],
    "no-json": [raw(b"data: {{{\n\n")],
    "html": [status(200, b"<html>hello</html>", {"content-type": "text/html"})],
}


@pytest.mark.parametrize("fault", OTHERS_FAULT)
async def test_the_next_upstream_answers_what_the_first_cannot(house: House, fault: str) -> None:
    model = house.script(f"{fault}-both", OTHERS_FAULT[fault], reply("The ", "second."))
    async with house.api.post_stream(model, background=True) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    assert (stream.final["status"], stream.final["output_text"]) == ("completed", "The second.")
    assert stream.final["usage"]["total_tokens"] == 18
    assert len(house.first.requests_for(model)) == len(house.second.requests_for(model)) == 1
    assert (
        house.first.requests_for(model)[0].messages == house.second.requests_for(model)[0].messages
    )
    assert await house.served_by(stream.response_id) == "second"
    foreground = await house.api.create(model)
    assert foreground["output_text"] == "The second."


async def test_an_upstream_where_nobody_listens_is_passed_over(house: House) -> None:
    house.second.script(reply("Here."), name="gone-or-not")
    for _ in range(3):  # its circuit opens on the way
        assert (await house.api.create("gone-or-not"))["output_text"] == "Here."


REQUESTS_FAULT: dict[str, tuple[Script, int]] = {
    "400": ([status(400)], 400),
    "413": ([status(413)], 413),
    "422": ([status(422)], 422),
    "too-long": (
        [status(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})],
        400,
    ),
    "no-such-model": (
        [
            status(
                404, {"error": {"message": "The model does not exist.", "code": "model_not_found"}}
            )
        ],
        400,
    ),
}


@pytest.mark.parametrize("fault", REQUESTS_FAULT)
async def test_a_request_that_is_itself_at_fault_is_put_to_nobody_else(
    house: House, fault: str
) -> None:
    script, expected = REQUESTS_FAULT[fault]
    model = house.script(f"{fault}-both", script, reply("Never."))
    answer = await house.api.call("POST", "/responses", {"model": model, "input": "Hi."})
    assert answer.status == expected
    assert not house.second.requests_for(model)


CUT: dict[str, Script] = {
    "reset": [text("Half a "), reset()],
    "error": [text("Half a "), chunk({"error": {"message": "Out of memory.", "code": 500}})],
    "ended-early": [text("Half a "), drop()],
}


@pytest.mark.parametrize("cut", CUT)
async def test_after_the_first_word_nobody_else_is_asked(house: House, cut: str) -> None:
    model = house.script(f"{cut}-late-both", CUT[cut], reply("Never."))
    async with house.api.post_stream(model, background=True) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    assert (stream.final["status"], stream.final["output_text"]) == ("failed", "Half a ")
    assert not house.second.requests_for(model)


async def test_a_cancel_closes_the_socket_of_the_upstream_that_is_being_asked(house: House) -> None:
    model = house.script("cancelled-both", [status(500)], [silence_until(asyncio.Event())])
    response_id = await house.api.create_background(model)
    [request] = await until(lambda: house.second.requests_for(model))
    assert (await house.api.cancel(response_id)).body["status"] == "cancelled"
    await until(lambda: request.closed_by_client is not None)


# --- circuits ---


async def test_a_model_that_fails_again_and_again_is_left_alone_and_background_responses_wait_for_it(
    house: House,
) -> None:
    model = house.first.script(*[[status(500)]] * 4, reply("Well again."), name="first-broken")
    for _ in range(3):
        assert (
            await house.api.call("POST", "/responses", {"model": model, "input": "Hi."})
        ).status == 502
    refused = await house.api.call("POST", "/responses", {"model": model, "input": "Hi."})
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "x-should-retry" not in refused.headers
    assert len(house.first.requests_for(model)) == 3, "an open circuit asks nobody"
    ids = [await house.api.create_background(model) for _ in range(3)]
    for response_id in ids:
        ended = await house.api.wait_for_end(response_id)
        assert (ended["status"], ended["output_text"]) == ("completed", "Well again.")
        async with house.api.follow(response_id) as stream:
            assert_stream_obeys_contract(await stream.to_end())
    assert len(house.first.requests_for(model)) == 3 + 1 + len(ids), (
        "one probe failed, the next went through"
    )
    other = house.script("first-sound", reply("Fine."))
    assert (await house.api.create(other))["output_text"] == "Fine."


async def test_an_open_circuit_is_passed_over_without_asking(house: House) -> None:
    model = house.script("broken-both", [status(500)], reply("Second."))
    for _ in range(5):
        assert (await house.api.create(model))["output_text"] == "Second."
    assert len(house.first.requests_for(model)) < 5


async def test_background_responses_outlast_an_upstream_that_is_gone(house: House) -> None:
    for _ in range(2):
        await house.api.call("POST", "/responses", {"model": "gone-x", "input": "Hi."})
    ids = [await house.api.create_background("gone-x") for _ in range(4)]
    cancelled = await house.api.create_background("gone-x")
    put_off = "SELECT count(*) FROM responses WHERE resume_at IS NOT NULL AND worker IS NULL AND model = 'gone-x'"

    async def waiting() -> bool:
        return int(await house.stack.value(put_off)) > 0

    await until(waiting)
    assert {(await house.api.get(response_id))["status"] for response_id in ids} <= {
        "queued",
        "in_progress",
    }
    answer = await house.api.cancel(cancelled)
    assert (answer.status, answer.body["status"]) == (200, "cancelled")
    async with FakeUpstream(port=house.closed) as back:
        back.script(reply("Back again."), name="gone-x")
        for response_id in ids:
            ended = await house.api.wait_for_end(response_id)
            assert (ended["status"], ended["output_text"]) == ("completed", "Back again.")
        assert len(back.requests_for("gone-x")) == len(ids)


# --- between the turns of a loop ---


async def test_each_turn_of_a_loop_is_put_to_the_first_that_answers_it(
    house: House, mcp_servers: McpServers
) -> None:
    model = "looped-both"
    house.first.script(tool_turn(("count_unsafe", "both")), [status(503)], name=model)
    house.second.script(reply("Counted."), name=model)
    response = await house.api.wait_for_end(
        await house.api.create_background(model, tools=[counting_server(mcp_servers)])
    )
    assert item_statuses(response) == [
        "mcp_list_tools completed",
        "mcp_call completed",
        "message completed",
    ]
    assert (response["output_text"], response["usage"]["total_tokens"]) == ("Counted.", 36)
    [_, asked] = house.first.requests_for(model)
    assert asked.messages == house.second.requests_for(model)[0].messages, (
        "the second knows what was called and answered"
    )


async def test_a_response_is_put_off_between_its_turns_and_calls_nothing_twice(
    house: House, mcp_servers: McpServers
) -> None:
    model = "first-looped"
    house.first.script(
        tool_turn(("count_unsafe", "put-off")), *[[status(500)]] * 3, reply("Counted."), name=model
    )
    opened = mcp_servers.tool_calls.hold("put-off")
    response_id = await house.api.create_background(model, tools=[counting_server(mcp_servers)])
    await until(lambda: house.first.requests_for(model))
    for _ in range(3):
        assert (
            await house.api.call("POST", "/responses", {"model": model, "input": "Hi."})
        ).status == 502
    opened.set()
    ended = await house.api.wait_for_end(response_id)
    assert item_statuses(ended) == [
        "mcp_list_tools completed",
        "mcp_call completed",
        "message completed",
    ]
    assert (ended["output"][1]["output"], ended["output_text"]) == (
        "count_unsafe put-off: call 1",
        "Counted.",
    )
    assert_one_stream(await house.api.replay(response_id))
    attempts = await house.stack.value(
        "SELECT attempt FROM responses WHERE id = %s", response_id.removeprefix("resp_")
    )
    assert attempts > 1


# --- so many at a time ---


async def test_no_more_than_its_limit_run_at_an_upstream(house: House) -> None:
    opened = asyncio.Event()
    model = house.script("narrow-x", [wait_for(opened), *reply("Done.")])
    ids = [await house.api.create_background(model) for _ in range(4)]
    await until(lambda: house.first.requests_for(model))
    busy = await house.api.call("POST", "/responses", {"model": model, "input": "Hi."})
    assert (busy.status, busy.error["code"], busy.headers["retry-after"]) == (
        429,
        "rate_limit_exceeded",
        "1",
    )
    assert len(house.first.requests_for(model)) == 1
    opened.set()
    for response_id in ids:
        assert (await house.api.wait_for_end(response_id))["output_text"] == "Done."
    requests = house.first.requests_for(model)
    assert len(requests) == len(ids)
    assert all(
        one.finished is not None and one.finished <= two.started for one, two in pairwise(requests)
    )


async def test_a_cancel_leaves_the_line_before_a_full_upstream(house: House) -> None:
    model = house.script("narrow-y", [hang()])
    runs = await house.api.create_background(model)
    [request] = await until(lambda: house.first.requests_for(model))
    waits = await house.api.create_background(model)
    assert (await house.api.cancel(waits)).body["status"] == "cancelled"
    assert (await house.api.cancel(runs)).body["status"] == "cancelled"
    await until(lambda: request.closed_by_client is not None)
    after = house.script("narrow-z", reply("Room."))
    assert (await house.api.create(after))["output_text"] == "Room."


async def test_an_upstream_that_hangs_leaves_streams_for_the_others(
    private_stack: PrivateStack, tmp_path: Path, fake: FakeUpstream
) -> None:
    file = tmp_path / "backburner.toml"
    file.write_text(
        f"""
        [upstreams]
        hung = {{ base_url = "{fake.base_url}", wait = 0.1 }}
        sound = {{ base_url = "{fake.base_url}" }}
        [routes]
        "hung" = "hung"
        "sound" = "sound"
        """
    )
    opened = asyncio.Event()
    fake.script([wait_for(opened), text("Late."), finish(), done()], name="hung")
    fake.script(reply("In time."), name="sound")
    async with private_stack(
        streams=8, settings={"BACKBURNER_CONFIG": str(file), "BACKBURNER_LEASE__SWEEP": "0.2"}
    ) as one:
        api = one.api()
        hung = [await api.create_background("hung") for _ in range(20)]
        await until(lambda: len(fake.requests_for("hung")) >= 6)
        for _ in range(3):
            assert (await api.wait_for_end(await api.create_background("sound")))[
                "output_text"
            ] == "In time."
        assert len(fake.requests_for("hung")) == 6, "three quarters of its streams"
        opened.set()
        for response_id in hung:
            assert (await api.wait_for_end(response_id))["output_text"] == "Late."


async def test_a_response_that_was_put_off_outlives_its_worker(
    private_stack: PrivateStack, tmp_path: Path
) -> None:
    file, closed = tmp_path / "backburner.toml", free_port()
    file.write_text(
        f"""
        [upstreams.gone]
        base_url = "http://127.0.0.1:{closed}/v1"
        max_retries = 0
        circuit_failures = 1
        circuit_pause = 1
        [routes]
        "any" = "gone"
        """
    )
    async with private_stack(settings={**SHORT_LEASES, "BACKBURNER_CONFIG": str(file)}) as one:
        api = one.api()
        ids = [await api.create_background("any") for _ in range(3)]

        async def put_off() -> bool:
            states = [
                (await backburner(one, "explain", response_id, "--json")).facts["response"]["state"]
                for response_id in ids
            ]
            return "put_off" in states

        await until(put_off)
        one.kill(one.workers[0])
        async with FakeUpstream(port=closed) as back:
            back.script(reply("Here I am."), name="any")
            await one.start_worker()
            for response_id in ids:
                ended = await api.wait_for_end(response_id)
                assert (ended["status"], ended["output_text"]) == ("completed", "Here I am.")
                async with api.follow(response_id) as stream:
                    assert_stream_obeys_contract(await stream.to_end())
            assert len(back.requests_for("any")) == len(ids)
        told = await backburner(one, "explain", ids[0])
        assert "put off: its upstreams were down or at their limit" in told.out
        assert "its last turn was answered by the upstream gone" in told.out
