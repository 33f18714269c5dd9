"""Steering over WebSocket: what the SDK's types say happens, and nothing is lost."""

import asyncio
import secrets
from typing import Any

import openai

from tests.support.api import JSON, Api, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    finish,
    hang,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.mcp_servers import McpServers
from tests.support.stack import Stack
from tests.support.steering import held_reply, steers_of, user_message
from tests.support.tool_turns import item_statuses, tool_turn
from tests.support.websocket_client import Socket, socket

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


async def test_the_official_client_steers_a_response(
    client: openai.AsyncOpenAI, api: Api, fake: FakeUpstream
) -> None:
    gate = asyncio.Event()
    model = fake.script(held_reply(gate), reply("En français."))
    async with client.responses.connect() as connection:
        await connection.response.create(model=model, input="Count.", metadata={"a": "b"})
        events: list[Any] = []
        async for event in connection:
            events.append(event)
            if event.type == "response.output_text.delta" and not gate.is_set():
                await connection.response.steer(
                    previous_response_id=events[0].response.id, input="In French."
                )
            if event.type == "response.steer.accepted":
                gate.set()
            if [one.type for one in events].count("response.completed") == 2:
                break
    [accepted] = [event for event in events if event.type == "response.steer.accepted"]
    first, second = [event.response for event in events if event.type == "response.completed"]
    assert accepted.steer.previous_response_id == first.id
    assert second.previous_response_id == first.id
    assert (first.output_text, second.output_text) == ("Once more.", "En français.")
    assert second.metadata == {"a": "b"}
    assert fake.requests_for(model)[1].texts == ["Count.", "Once more.", "In French."]
    [steer] = await steers_of(api, first.id)
    assert (steer["id"], steer["state"]) == (accepted.steer.id, "committed")
    assert (steer["successor_response_id"], steer["input"]) == (second.id, None)
    page = await api.call("GET", f"/responses/{second.id}/input_items")
    assert [item["content"][0]["text"] for item in page.body["data"]] == ["In French."]
    # What continues the successor sees all of it.
    later = await api.create(model, input="And?", previous_response_id=second.id)
    assert later["status"] == "completed"
    assert fake.requests_for(model)[2].texts[2:] == ["In French.", "En français.", "And?"]


async def test_a_response_that_calls_tools_stops_between_two_turns(
    tool_stack: Stack, mcp_servers: McpServers, fake: FakeUpstream
) -> None:
    """The successor has the client's credentials."""
    key, token = f"steered-{secrets.token_hex(4)}", "s3cret"
    gate = mcp_servers.tool_calls.hold(key)
    server = {
        "type": "mcp",
        "server_label": "counting",
        "server_url": mcp_servers.url_with_token("counting", token),
        "authorization": token,
        "require_approval": "never",
    }
    again = f"{key}-again"
    turns = [tool_turn(("count_idempotent", one)) for one in (key, again)]
    model = fake.script(*turns, reply("Both done."))
    async with socket(tool_stack.api()) as connection:
        await connection.create(model, tools=[server], stream_id="agent")
        created = await connection.until("response.created")
        await until(lambda: mcp_servers.tool_calls.calls_with(key))
        steer = {
            "previous_response_id": created["response"]["id"],
            "input": [user_message("Again.")],
        }
        await connection.send(type="response.steer", **steer)
        accepted = await connection.until("response.steer.accepted")
        gate.set()
        incomplete = (await connection.until("response.incomplete"))["response"]
        second = await connection.read_to_end()
    assert accepted["stream_id"] == "agent"
    assert {event["stream_id"] for event in second} == {"agent"}
    assert_stream_obeys_contract(second)
    assert incomplete["incomplete_details"] == {"reason": "steered"}
    assert item_statuses(incomplete) == ["mcp_list_tools completed", "mcp_call completed"]
    final = second[-1]["response"]
    assert (final["status"], final["output_text"]) == ("completed", "Both done.")
    assert final["previous_response_id"] == incomplete["id"]
    assert len(mcp_servers.tool_calls.calls_with(again)) == 1
    roles = [message["role"] for message in fake.requests_for(model)[1].messages]
    assert roles == ["user", "assistant", "tool", "user"]


async def test_input_waits_for_the_outputs_of_the_clients_tools(
    api: Api, fake: FakeUpstream
) -> None:
    gate = asyncio.Event()
    tool_call = call(0, "call_a", "look", "{}")
    model = fake.script(
        [tool_call, wait_for(gate), finish("tool_calls"), usage(), done()], reply("seen")
    )
    async with socket(api) as connection:
        await connection.create(model, tools=[FUNCTION], stream_id="one")
        first = (await connection.until("response.created"))["response"]["id"]
        for value in ("Quickly.", "Please."):
            await connection.send(type="response.steer", previous_response_id=first, input=value)
        accepted = [await connection.until("response.steer.accepted") for _ in range(2)]
        gate.set()
        await connection.until("response.completed")
        pending = [await connection.next() for _ in range(2)]
        assert {event["type"] for event in pending} == {"response.steer.pending"}
        assert [event["steer"] for event in pending] == [event["steer"] for event in accepted]
        stub = {"type": "function_call_output", "call_id": "call_a", "name": "look"}
        assert [event["required_input"] for event in pending] == [[stub], [stub]]
        assert {event["reason"] for event in pending} == {"waiting_for_required_input"}
        assert [steer["state"] for steer in await steers_of(api, first)] == ["pending"] * 2
        numbers = [event["sequence_number"] for event in (*accepted, *pending)]
        assert numbers == [0, 1, 2, 3]
        second = await connection.create_and_read(
            model,
            input=[{**stub, "output": "42"}],
            previous_response_id=first,
            tools=[FUNCTION],
            stream_id="one",
        )
    assert second["output_text"] == "seen"
    assert [steer["successor_response_id"] for steer in await steers_of(api, first)] == [
        second["id"]
    ] * 2
    page = await api.call("GET", f"/responses/{second['id']}/input_items", params={"order": "asc"})
    kinds = [item["type"] for item in page.body["data"]]
    assert kinds == ["message", "message", "function_call_output"]
    roles = [message["role"] for message in fake.requests_for(model)[1].messages]
    assert roles[:3] == ["user", "assistant", "tool"]
    assert fake.requests_for(model)[1].texts[-2:] == ["Quickly.", "Please."]


async def test_an_unstored_response_is_steered_on_its_connection_alone(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    gate = asyncio.Event()
    model = fake.script(held_reply(gate), reply("second"), reply("third"))
    async with socket(api) as connection, socket(shared_stack.api(1)) as other:
        await connection.create(model, store=False)
        first = (await connection.until("response.created"))["response"]["id"]
        await other.send(type="response.steer", previous_response_id=first, input="Mine?")
        failed = await other.next()
        assert failed["type"] == "response.steer.failed"
        assert failed["error"]["code"] == "response_not_found"
        assert failed["steer"] == {"previous_response_id": first, "input": "Mine?"}
        await connection.send(type="response.steer", previous_response_id=first, input="More.")
        await connection.until("response.steer.accepted")
        gate.set()
        await connection.until("response.completed")
        second = (await connection.until("response.completed"))["response"]
        third = await connection.create_and_read(
            model, store=False, previous_response_id=second["id"]
        )
    assert (second["output_text"], third["output_text"]) == ("second", "third")
    assert (await api.call("GET", f"/responses/{second['id']}")).status == 404


async def test_a_client_that_leaves_cancels_the_successor_too(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    gate = asyncio.Event()
    model = fake.script(held_reply(gate), [text("x"), hang()])
    async with socket(api) as connection:
        await connection.create(model)
        first = (await connection.until("response.created"))["response"]["id"]
        await connection.send(type="response.steer", previous_response_id=first, input="More.")
        await connection.until("response.steer.accepted")
        gate.set()
        await until(lambda: len(fake.requests_for(model)) == 2)
    query = "SELECT status FROM responses WHERE previous_response_id = %s::uuid"

    async def is_cancelled() -> bool:
        status = await shared_stack.value(query, first.removeprefix("resp_"))
        return bool(status == "cancelled")

    await until(is_cancelled)


async def test_a_failure_returns_what_was_queued_over_a_websocket(
    api: Api, fake: FakeUpstream
) -> None:
    gate = asyncio.Event()
    model = fake.script([text("x"), wait_for(gate), finish("error"), usage(), done()])
    async with socket(api) as connection:
        await connection.create(model)
        created = (await connection.until("response.created"))["response"]["id"]
        await connection.send(type="response.steer", previous_response_id=created, input="Wait.")
        accepted = await connection.until("response.steer.accepted")
        gate.set()
        await connection.until("response.failed")
        failed = await connection.next()
    assert (failed["type"], failed["error"]["code"]) == (
        "response.steer.failed",
        "response_not_active",
    )
    assert failed["steer"] == {**accepted["steer"], "input": "Wait."}


async def test_a_stream_of_steers_keeps_its_order(api: Api, fake: FakeUpstream) -> None:
    gate = asyncio.Event()
    model = fake.script(held_reply(gate), reply("all"))
    async with socket(api) as connection:
        await connection.create(model)
        created = (await connection.until("response.created"))["response"]["id"]
        for number in range(5):
            await connection.send(
                type="response.steer", previous_response_id=created, input=f"{number}"
            )
        await _until_accepted(connection, 5)
        gate.set()
        await connection.until("response.completed")
        await connection.until("response.completed")
    assert fake.requests_for(model)[1].texts[2:] == list("01234")


async def _until_accepted(connection: Socket, count: int) -> None:
    for _ in range(count):
        await connection.until("response.steer.accepted")


async def test_what_is_no_steer_is_returned(api: Api, fake: FakeUpstream) -> None:
    model = fake.script([text("x"), hang()])
    async with socket(api) as connection:
        await connection.create(model)
        created = (await connection.until("response.created"))["response"]["id"]
        frame = {"type": "response.steer", "previous_response_id": created}
        invalid: list[JSON] = [{"input": []}, {"input": "x", "stream_id": "a"}]
        for more in invalid:
            await connection.send(**frame, **more)
            failed = await connection.until("response.steer.failed")
            assert failed["error"]["code"] == "invalid_input"
            assert failed["steer"] == {"previous_response_id": created, "input": more["input"]}
