"""Several upstreams behind one server: which one gets a model's turns, also while one is down."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cli.embedded.process import free_port
from models.console_links import LOGIN_PATH, create_link
from tests.conftest import PrivateStack
from tests.integration.operator.test_operations import backburner
from tests.support.api import JSON, Api, until
from tests.support.chaos.attempts import assert_abandoned, assert_one_stream
from tests.support.console import console_user
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
from tests.support.mcp_servers import PIXEL, McpServers
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.strict_upstream import STRICT_UPSTREAMS, strict
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, item_statuses, tool_turn
from tests.support.upstream_faults import waited_for

FILE = """
[upstreams.first]
base_url = "{first}"
api_key_env = "FIRST_KEY"
passthrough = ["top_k"]
max_retries = 0
first_token = 0.7
circuit_failures = 3
circuit_pause = 0.5
repeat_turns = 1

[upstreams.second]
base_url = "{second}"
api_key = "key-of-the-second"
max_tokens_field = "max_tokens"
headers = {{ x-title = "Backburner" }}
query = {{ api-version = "7" }}

[upstreams.down]
base_url = "http://127.0.0.1:{closed}/v1"
max_retries = 0
circuit_failures = 2
circuit_pause = 0.5

[upstreams.narrow]
base_url = "{first}"
concurrency = 1
wait = 0.2
repeat_turns = 0

[routes]
"*-both" = ["first", "second"]
"first-*" = "first"
"first-but-*" = "second"
"second-*" = "second"
"alias-model" = {{ upstream = "second", model = "its-real-name" }}
"local/*" = [{{ upstream = "first", model = "*" }}, {{ upstream = "second", model = "as-*" }}]
"down-*" = "down"
"down-or-*" = ["down", "second"]
"narrow-*" = "narrow"
"""


@dataclass(frozen=True, slots=True)
class RoutedStack:
    """A deployment with two upstreams that answer and one that does not."""

    stack: Stack
    first: FakeUpstream
    second: FakeUpstream
    closed: int
    """The port of the upstream that is down."""

    @property
    def api(self) -> Api:
        return self.stack.api()

    def script(self, name: str, first: Script, second: Script | None = None) -> str:
        """Scripts both upstreams for the model of this name; returns the name."""
        self.first.script(first, name=name)
        if second is not None:
            self.second.script(second, name=name)
        return name

    async def served_by(self, response_id: str) -> str | None:
        """Returns the upstream that the row names."""
        upstream = await self.stack.value(
            "SELECT upstream FROM responses WHERE id = %s", response_id.removeprefix("resp_")
        )
        return None if upstream is None else str(upstream)


@pytest.fixture(scope="module")
async def routed(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[RoutedStack]:
    folder = tmp_path_factory.mktemp("routing")
    async with AsyncExitStack() as context:
        first, second = [await context.enter_async_context(FakeUpstream()) for _ in range(2)]
        closed = free_port()
        (folder / "backburner.toml").write_text(
            FILE.format(first=first.base_url, second=second.base_url, closed=closed)
            + "".join(f'"strict-{preset}" = "strict-{preset}"\n' for preset in STRICT_UPSTREAMS)
            + "".join(
                f'[upstreams.strict-{preset}]\nbase_url = "{first.base_url}"\npreset = "{preset}"\n'
                for preset in STRICT_UPSTREAMS
            )
        )
        file = str(folder / "backburner.toml")
        settings = {
            **TOOL_SETTINGS,
            "BACKBURNER_CONFIG": file,
            "FIRST_KEY": "key-of-the-first",
            "BACKBURNER_LEASE__SWEEP": "0.2",
        }
        own_stack = await context.enter_async_context(
            stack(folder, database_server, suite_settings, fake, settings=settings)
        )
        yield RoutedStack(own_stack, first, second, closed)
        assert not first.faults, first.faults
        assert not second.faults, second.faults


# --- which upstream ---


async def test_the_most_specific_route_wins_and_each_upstream_gets_its_own_key(
    routed: RoutedStack,
) -> None:
    for model, used, other in (
        ("first-x", routed.first, routed.second),
        ("first-but-x", routed.second, routed.first),
    ):
        used.script(reply(f"by {model}"), name=model)
        response = await routed.api.create(model, max_output_tokens=50)
        assert (response["model"], response["output_text"]) == (model, f"by {model}")
        assert not other.requests_for(model)
    [to_first], [to_second] = (
        routed.first.requests_for("first-x"),
        routed.second.requests_for("first-but-x"),
    )
    assert to_first.headers["authorization"] == "Bearer key-of-the-first"
    assert to_second.headers["authorization"] == "Bearer key-of-the-second"
    assert (to_first.body["max_completion_tokens"], to_second.body["max_tokens"]) == (50, 50)
    assert (to_second.headers["x-title"], to_second.query) == ("Backburner", "api-version=7")


async def test_an_alias_is_sent_as_the_upstreams_name_and_shown_to_clients_as_the_alias(
    routed: RoutedStack,
) -> None:
    routed.second.script(reply("Yes."), name="its-real-name")
    response = await routed.api.create("alias-model")
    assert (response["model"], response["output_text"]) == ("alias-model", "Yes.")
    routed.first.script([status(500)], name="llama")
    routed.second.script(reply("Second."), name="as-llama")
    response = await routed.api.create("local/llama")
    assert (response["model"], response["output_text"]) == ("local/llama", "Second.")
    routed.first.script(
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
    answer = await routed.api.call("POST", "/responses", {"model": "local/nil", "input": "Hi."})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "model_not_found",
        "model",
    )
    assert "'local/nil'" in answer.error["message"]


@pytest.mark.parametrize(
    "how", [{}, {"stream": True}, {"background": True}], ids=["plain", "stream", "background"]
)
async def test_a_model_without_a_route_is_refused_at_create(
    routed: RoutedStack, how: dict[str, Any]
) -> None:
    answer = await routed.api.call(
        "POST", "/responses", {"model": "unrouted", "input": "Hi.", **how}
    )
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "model_not_found",
        "model",
    )
    assert "'unrouted'" in answer.error["message"]


async def test_passthrough_fields_are_those_of_the_upstream_that_gets_the_request(
    routed: RoutedStack,
) -> None:
    routed.script("passed-both", [status(500)], reply("Second."))
    assert (await routed.api.create("passed-both", top_k=7))["output_text"] == "Second."
    [to_first], [to_second] = (
        routed.first.requests_for("passed-both"),
        routed.second.requests_for("passed-both"),
    )
    assert to_first.body["top_k"] == 7
    assert "top_k" not in to_second.body
    answer = await routed.api.call(
        "POST", "/responses", {"model": "second-x", "input": "Hi.", "top_k": 7}
    )
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "unknown_parameter",
        "top_k",
    )


async def test_the_model_list_shows_exactly_the_models_with_a_route(routed: RoutedStack) -> None:
    routed.first.script(reply("x"), name="first-listed")
    routed.second.script(reply("x"), name="as-listed")
    # Another upstream's more specific route has this name, so this entry is not listed.
    routed.second.script(reply("x"), name="first-listed")
    routed.second.script(reply("x"), name="unrouted")
    answer = await routed.api.call("GET", "/models")
    assert answer.status == 200, "an upstream that is down hides nothing"
    listed = {model["id"]: model for model in answer.body["data"]}
    assert {"alias-model", "first-listed", "local/first-listed", "local/listed"} <= set(listed)
    assert not {"unrouted", "resident", "as-listed", "its-real-name", "*"} & set(listed)
    assert listed["alias-model"] == {
        "id": "alias-model",
        "object": "model",
        "created": 0,
        "owned_by": "second",
    }
    assert (await routed.api.call("GET", "/models/local%2Flisted")).body == listed["local/listed"]
    used = len([request for request in routed.first.requests if request.path == "/v1/models"])
    await routed.api.call("GET", "/models")
    assert (
        len([request for request in routed.first.requests if request.path == "/v1/models"]) == used
    ), "the list is cached"


# --- the next upstream, before the first token ---

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
async def test_the_next_upstream_answers_when_the_first_fails(
    routed: RoutedStack, fault: str
) -> None:
    model = routed.script(f"{fault}-both", OTHERS_FAULT[fault], reply("The ", "second."))
    async with routed.api.post_stream(model, background=True) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    assert (stream.final["status"], stream.final["output_text"]) == ("completed", "The second.")
    assert stream.final["usage"]["total_tokens"] == 18
    assert len(routed.first.requests_for(model)) == len(routed.second.requests_for(model)) == 1
    assert (
        routed.first.requests_for(model)[0].messages
        == routed.second.requests_for(model)[0].messages
    )
    assert await routed.served_by(stream.response_id) == "second"
    foreground = await routed.api.create(model)
    assert foreground["output_text"] == "The second."


async def test_an_upstream_that_refuses_connections_is_skipped(routed: RoutedStack) -> None:
    routed.second.script(reply("Here."), name="down-or-not")
    for _ in range(3):  # its circuit opens on the way
        assert (await routed.api.create("down-or-not"))["output_text"] == "Here."


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
async def test_an_invalid_request_is_not_sent_to_the_next_upstream(
    routed: RoutedStack, fault: str
) -> None:
    script, expected = REQUESTS_FAULT[fault]
    model = routed.script(f"{fault}-both", script, reply("Never."))
    answer = await routed.api.call("POST", "/responses", {"model": model, "input": "Hi."})
    assert answer.status == expected
    assert not routed.second.requests_for(model)


CUT: dict[str, Script] = {
    "reset": [text("Half a "), reset()],
    "error": [text("Half a "), chunk({"error": {"message": "Out of memory.", "code": 500}})],
    "ended-early": [text("Half a "), drop()],
}


@pytest.mark.parametrize("cut", CUT)
async def test_after_the_first_token_no_other_upstream_is_called(
    routed: RoutedStack, cut: str
) -> None:
    model = routed.script(f"{cut}-late-both", CUT[cut], reply("Never."))
    async with routed.api.post_stream(model) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    assert (stream.final["status"], stream.final["output_text"]) == ("failed", "Half a ")
    assert not routed.second.requests_for(model)


async def test_the_turn_that_an_upstream_broke_off_may_be_repeated_by_the_next_one(
    routed: RoutedStack,
) -> None:
    model = "restarts-both"
    routed.first.script(CUT["reset"], [status(503)], name=model)
    routed.second.script(reply("Whole."), name=model)
    async with routed.api.post_stream(model, background=True) as stream:
        await stream.to_end()
    assert_abandoned(assert_one_stream(stream.frames), items=1)
    assert (stream.final["status"], stream.final["output_text"]) == ("completed", "Whole.")
    assert await routed.served_by(stream.response_id) == "second"


async def test_after_the_last_repeat_the_response_fails_with_the_upstreams_words(
    routed: RoutedStack,
) -> None:
    model = routed.script("first-breaks", CUT["error"])
    async with routed.api.post_stream(model, background=True) as stream:
        await stream.to_end()
    assert_abandoned(assert_one_stream(stream.frames), items=1)
    assert (stream.final["status"], stream.final["output_text"]) == ("failed", "Half a ")
    assert "Out of memory." in stream.final["error"]["message"]
    assert len(routed.first.requests_for(model)) == 2


async def test_stored_tool_calls_do_not_run_again_and_each_turn_may_be_repeated(
    routed: RoutedStack, mcp_servers: McpServers
) -> None:
    model, calls = "first-loop-breaks", tool_turn(("count_unsafe", "broken"))
    routed.first.script(CUT["reset"], calls, CUT["reset"], reply("Counted."), name=model)
    response_id = await routed.api.create_background(model, tools=[counting_server(mcp_servers)])
    response = await routed.api.wait_for_end(response_id)
    assert item_statuses(response) == [
        "mcp_list_tools completed",
        "mcp_call completed",
        "message completed",
    ]
    assert response["output"][1]["output"] == "count_unsafe broken: call 1"
    assert response["usage"]["total_tokens"] == 36, "of the two turns that ended"
    assert_one_stream(await routed.api.replay(response_id))


async def test_an_upstream_may_be_configured_to_repeat_no_turn(routed: RoutedStack) -> None:
    model = routed.script("narrow-restarts", CUT["reset"])
    ended = await routed.api.wait_for_end(await routed.api.create_background(model))
    assert (ended["status"], ended["output_text"]) == ("failed", "Half a ")
    assert len(routed.first.requests_for(model)) == 1


async def test_a_cancel_closes_the_socket_of_the_upstream_that_was_called(
    routed: RoutedStack,
) -> None:
    model = routed.script("cancelled-both", [status(500)], [silence_until(asyncio.Event())])
    response_id = await routed.api.create_background(model)
    [request] = await until(lambda: routed.second.requests_for(model))
    assert (await routed.api.cancel(response_id)).body["status"] == "cancelled"
    await until(lambda: request.closed_by_client is not None)


# --- circuits ---


async def test_an_open_circuit_spares_a_failing_model_and_background_responses_wait_for_it(
    routed: RoutedStack,
) -> None:
    model = routed.first.script(*[[status(500)]] * 4, reply("Well again."), name="first-broken")
    for _ in range(3):
        assert (
            await routed.api.call("POST", "/responses", {"model": model, "input": "Hi."})
        ).status == 502
    refused = await routed.api.call("POST", "/responses", {"model": model, "input": "Hi."})
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "x-should-retry" not in refused.headers
    assert len(routed.first.requests_for(model)) == 3, "an open circuit makes no call"
    ids = [await routed.api.create_background(model) for _ in range(3)]
    for response_id in ids:
        ended = await routed.api.wait_for_end(response_id)
        assert (ended["status"], ended["output_text"]) == ("completed", "Well again.")
        async with routed.api.follow(response_id) as stream:
            assert_stream_obeys_contract(await stream.to_end())
    assert len(routed.first.requests_for(model)) == 3 + 1 + len(ids), (
        "one probe failed, the next went through"
    )
    other = routed.script("first-sound", reply("Fine."))
    assert (await routed.api.create(other))["output_text"] == "Fine."


async def test_an_upstream_with_an_open_circuit_is_skipped_without_a_call(
    routed: RoutedStack,
) -> None:
    model = routed.script("broken-both", [status(500)], reply("Second."))
    for _ in range(5):
        assert (await routed.api.create(model))["output_text"] == "Second."
    assert len(routed.first.requests_for(model)) < 5


async def test_background_responses_wait_until_a_dead_upstream_is_back(routed: RoutedStack) -> None:
    first = await routed.api.create_background("down-x")
    failed_call = await until(lambda: waited_for(routed.stack, first))
    assert failed_call is not None
    assert failed_call["upstream"] == "down"
    assert failed_call["reason"] == "upstream_unreachable", "the circuit is closed"
    ids = [first] + [await routed.api.create_background("down-x") for _ in range(4)]
    cancelled = await routed.api.create_background("down-x")
    deferred = (
        "SELECT count(*) FROM responses"
        " WHERE resume_at IS NOT NULL AND worker IS NULL AND model = 'down-x'"
    )

    async def waiting() -> bool:
        return int(await routed.stack.value(deferred)) > 0

    await until(waiting)
    assert {(await routed.api.get(response_id))["status"] for response_id in ids} <= {
        "queued",
        "in_progress",
    }
    answer = await routed.api.cancel(cancelled)
    assert (answer.status, answer.body["status"]) == (200, "cancelled")
    async with FakeUpstream(port=routed.closed) as back:
        back.script(reply("Back again."), name="down-x")
        for response_id in ids:
            ended = await routed.api.wait_for_end(response_id)
            assert (ended["status"], ended["output_text"]) == ("completed", "Back again.")
        assert len(back.requests_for("down-x")) == len(ids)


# --- between the turns of a loop ---


async def test_each_turn_of_a_loop_goes_to_the_first_upstream_that_answers(
    routed: RoutedStack, mcp_servers: McpServers
) -> None:
    model = "looped-both"
    routed.first.script(tool_turn(("count_unsafe", "both")), [status(503)], name=model)
    routed.second.script(reply("Counted."), name=model)
    response = await routed.api.wait_for_end(
        await routed.api.create_background(model, tools=[counting_server(mcp_servers)])
    )
    assert item_statuses(response) == [
        "mcp_list_tools completed",
        "mcp_call completed",
        "message completed",
    ]
    assert (response["output_text"], response["usage"]["total_tokens"]) == ("Counted.", 36)
    [_, used] = routed.first.requests_for(model)
    [other] = routed.second.requests_for(model)
    assert _without_ids(used.messages) == _without_ids(other.messages), (
        "the second upstream gets the call and its result"
    )
    # The first upstream gets its own id of the call.
    assert used.messages[1]["tool_calls"][0]["id"] == used.messages[2]["tool_call_id"] == "call_0"


def _without_ids(messages: list[JSON]) -> list[JSON]:
    """The messages without the ids of calls, which differ by upstream."""
    return [
        {
            **{name: value for name, value in message.items() if name != "tool_call_id"},
            **(
                {"tool_calls": [call | {"id": ""} for call in message["tool_calls"]]}
                if "tool_calls" in message
                else {}
            ),
        }
        for message in messages
    ]


async def test_a_response_deferred_between_its_turns_calls_no_tool_twice(
    routed: RoutedStack, mcp_servers: McpServers
) -> None:
    model = "first-looped"
    routed.first.script(
        tool_turn(("count_unsafe", "deferred")), [status(500)], reply("Counted."), name=model
    )
    response_id = await routed.api.create_background(model, tools=[counting_server(mcp_servers)])
    ended = await routed.api.wait_for_end(response_id)
    assert item_statuses(ended) == [
        "mcp_list_tools completed",
        "mcp_call completed",
        "message completed",
    ]
    assert (ended["output"][1]["output"], ended["output_text"]) == (
        "count_unsafe deferred: call 1",
        "Counted.",
    )
    assert_one_stream(await routed.api.replay(response_id))
    attempts = await routed.stack.value(
        "SELECT attempt FROM responses WHERE id = %s", response_id.removeprefix("resp_")
    )
    assert attempts > 1


# --- concurrency limits ---


async def test_an_upstream_runs_no_more_requests_than_its_limit(routed: RoutedStack) -> None:
    released = asyncio.Event()
    model = routed.script("narrow-x", [wait_for(released), *reply("Done.")])
    ids = [await routed.api.create_background(model) for _ in range(4)]
    await until(lambda: routed.first.requests_for(model))
    busy = await routed.api.call("POST", "/responses", {"model": model, "input": "Hi."})
    assert (busy.status, busy.error["code"], busy.headers["retry-after"]) == (
        429,
        "rate_limit_exceeded",
        "1",
    )
    assert len(routed.first.requests_for(model)) == 1
    released.set()
    for response_id in ids:
        assert (await routed.api.wait_for_end(response_id))["output_text"] == "Done."
    requests = routed.first.requests_for(model)
    assert len(requests) == len(ids)
    assert all(
        request.finished is not None and request.finished <= other.started
        for request, other in pairwise(requests)
    )


async def test_a_cancel_frees_a_place_in_the_queue_of_a_full_upstream(routed: RoutedStack) -> None:
    model = routed.script("narrow-y", [hang()])
    runs = await routed.api.create_background(model)
    [request] = await until(lambda: routed.first.requests_for(model))
    waits = await routed.api.create_background(model)
    assert (await routed.api.cancel(waits)).body["status"] == "cancelled"
    assert (await routed.api.cancel(runs)).body["status"] == "cancelled"
    await until(lambda: request.closed_by_client is not None)
    after = routed.script("narrow-z", reply("Room."))
    assert (await routed.api.create(after))["output_text"] == "Room."


async def test_an_upstream_that_hangs_leaves_slots_for_the_others(
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
    released = asyncio.Event()
    fake.script([wait_for(released), text("Late."), finish(), done()], name="hung")
    fake.script(reply("In time."), name="sound")
    async with private_stack(
        streams=8, settings={"BACKBURNER_CONFIG": str(file), "BACKBURNER_LEASE__SWEEP": "0.2"}
    ) as own_stack:
        api = own_stack.api()
        hung = [await api.create_background("hung") for _ in range(20)]
        await until(lambda: len(fake.requests_for("hung")) >= 6)
        for _ in range(3):
            assert (await api.wait_for_end(await api.create_background("sound")))[
                "output_text"
            ] == "In time."
        assert len(fake.requests_for("hung")) == 6, "three quarters of the slots"
        released.set()
        for response_id in hung:
            assert (await api.wait_for_end(response_id))["output_text"] == "Late."


async def _assert_completes(api: Api, response_id: str, output_text: str) -> None:
    ended = await api.wait_for_end(response_id)
    assert (ended["status"], ended["output_text"]) == ("completed", output_text)
    async with api.follow(response_id) as stream:
        assert_stream_obeys_contract(await stream.to_end())


async def _console_says_what_waits(own_stack: Stack) -> None:
    async with console_user(own_stack) as user:
        await user.get(f"{LOGIN_PATH}{create_link(own_stack.dsn)}")

        async def problem() -> bool:
            return "3 responses of default wait." in (await user.get("/console")).text

        await until(problem, every=0.5)
        page = await user.get("/console")
        assert page.text.count("down fails since") == 1, "one line, whatever the failures say"
        assert "(The upstream could not be reached" in page.text
        assert "Nothing is wrong" not in page.text
        link = page.html.split("down fails since")[1].split('href="')[1].split('"')[0]
        assert (await user.get(unescape(link))).html.count('title="any"') == 3
        upstreams = await user.get("/console/upstreams")
        assert upstreams.text.count("down fails since") == 1
        assert "proj_" not in upstreams.text, "projects have names"


@pytest.mark.long
async def test_a_deferred_response_survives_the_death_of_its_worker(
    private_stack: PrivateStack, tmp_path: Path
) -> None:
    file, closed = tmp_path / "backburner.toml", free_port()
    file.write_text(
        f"""
        [upstreams.down]
        base_url = "http://127.0.0.1:{closed}/v1"
        max_retries = 0
        circuit_failures = 1
        circuit_pause = 1
        [routes]
        "any" = "down"
        """
    )
    async with private_stack(
        settings={**SHORT_LEASES, "BACKBURNER_CONFIG": str(file)}
    ) as own_stack:
        api = own_stack.api()
        ids = [await api.create_background("any") for _ in range(3)]

        async def has_deferred() -> bool:
            explained = [
                (await backburner(own_stack, "explain", response_id, "--json")).facts
                for response_id in ids
            ]
            return "retrying" in [facts["response"]["state"] for facts in explained]

        await until(has_deferred)
        await _console_says_what_waits(own_stack)
        own_stack.kill(own_stack.workers[0])
        async with FakeUpstream(port=closed) as upstream:
            upstream.script(reply("Here I am."), name="any")
            await own_stack.start_worker()
            for response_id in ids:
                await _assert_completes(api, response_id, "Here I am.")
            assert len(upstream.requests_for("any")) == len(ids)
        explained = await backburner(own_stack, "explain", ids[0])
        assert "attempt 1 deferred: upstream down failed (upstream_unreachable)" in explained.out
        assert "its last turn was answered by the upstream down" in explained.out


# --- upstreams that refuse as vendors do ---

ODD_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"city": {"type": "string", "description": None}, "more": {"type": "array"}},
    "required": None,
}
STRICT_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    {"type": "function", "name": "2nd", "description": "x" * 2000, "parameters": ODD_SCHEMA},
    {"type": "function", "name": "bare", "parameters": {"type": "object"}},
]


@pytest.mark.parametrize("preset", STRICT_UPSTREAMS)
async def test_a_strict_vendor_accepts_a_long_conversation_with_tools(
    routed: RoutedStack, preset: str
) -> None:
    model = routed.script(f"strict-{preset}", [strict(STRICT_UPSTREAMS[preset])])
    image = {
        "type": "input_image",
        "image_url": f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}",
    }
    tools: dict[str, Any] = {"tools": STRICT_TOOLS, "parallel_tool_calls": True}

    async def answer(before: Any, *items: Any, **parameters: Any) -> Any:
        earlier = {"previous_response_id": before["id"]} if before else {}
        response = await routed.api.create(
            model, input=list(items), max_output_tokens=50, **earlier, **parameters
        )
        assert response["status"] == "completed", response["error"]
        return response

    def output(response: Any, content: Any) -> Any:
        [made] = [item for item in response["output"] if item["type"] == "function_call"]
        return {"type": "function_call_output", "call_id": made["call_id"], "output": content}

    def user(content: Any) -> Any:
        return {"role": "user", "content": content}

    parts = [{"type": "input_text", "text": text} for text in ("What is the weather", "", "now?")]
    called = await answer(None, user("Hello."), user(parts), instructions="Be kind.", **tools)
    told = await answer(called, output(called, ""), **tools)
    named = {"type": "function", "name": "get_weather"}
    forced = await answer(told, user(" "), **tools, tool_choice=named)
    seen = await answer(
        forced, output(forced, [image]), user("And this?"), **tools, tool_choice="none"
    )
    shape = {"type": "json_schema", "name": "shape", "schema": STRICT_TOOLS[0]["parameters"]}
    late = await answer(
        seen,
        {"role": "developer", "content": "Be brief."},
        user("Goodbye."),
        text={"format": shape},
    )
    cut = {"type": "function_call", "call_id": "call_cut", "name": "get_weather"}
    await answer(
        None,
        user("Hello."),
        {**cut, "arguments": '{"city": "Par'},
        {"type": "function_call_output", "call_id": "call_cut", "output": "no JSON"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]},
        {"role": "assistant", "content": ""},
        user("Why?"),
    )
    assert late["output_text"] == "one, two"
