"""Recorded requests of real clients, sent again: each gets the recorded status and items.

`./dev test tests/clients --live --record` runs the clients themselves and renews the recordings.
"""

from contextlib import AsyncExitStack
from typing import Self

import pytest

from tests.support.api import JSON, Api
from tests.support.clients.catalogue import CLIENTS, Client
from tests.support.clients.recorded import RecordedRequest, fill_placeholders, load, placeholders_in
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.mcp_servers import McpServers
from tests.support.stack import Stack
from tests.support.strict_types import check_event, check_response
from tests.support.websocket_client import Socket, socket

EVERY = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


@EVERY
async def test_a_recorded_request_is_answered_as_before(
    tool_stack: Stack, mcp_servers: McpServers, client: Client
) -> None:
    places = {"mcp": mcp_servers.url("plain")}
    async with _Replayer(tool_stack.api()) as teller:
        for number, one in enumerate(load(client.name)):
            answer = await teller.replay(
                one, fill_placeholders(one.path, places), fill_placeholders(one.body, places)
            )
            places |= placeholders_in(number, answer)
            if one.output is not None:
                assert [item["type"] for item in answer["output"]] == one.output, (
                    one.scenario,
                    answer,
                )


class _Replayer:
    """Sends requests again over as many connections as recorded, and checks every event of the
    answers.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._sockets: dict[int, Socket] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def replay(self, one: RecordedRequest, path: str, body: JSON | None) -> JSON:
        """The JSON of the answer, or the response in its last event."""
        if one.socket is not None:
            assert body is not None
            return await self._over_socket(one.socket, body)
        if path == "/chat/completions":
            answer = await self._api.call(one.method, path, body)
            assert (answer.status, answer.raw.endswith(b"data: [DONE]\n\n")) == (
                one.status,
                bool(body and body.get("stream")),
            )
            return {}
        if path.startswith("/messages"):
            answer = await self._api.call(one.method, path, body)
            assert answer.status == one.status, (one.scenario, answer.raw)
            is_whole = answer.raw.endswith(b'data: {"type":"message_stop"}\n\n')
            assert is_whole is bool(body and body.get("stream") and one.status == 200)
            return {}
        if body is not None and body.get("stream"):
            async with self._api.post_stream(**body) as stream:
                return _check_events(await stream.to_end())
        answer = await self._api.call(one.method, path, body)
        assert answer.status == one.status, (one.scenario, answer.raw)
        answered = answer.body
        if answered.get("object") == "response" and "deleted" not in answered:
            check_response(answered)
            if answered["status"] == "queued":
                answered = await self._api.wait_for_end(answered["id"])
        return answered

    async def _over_socket(self, number: int, frame: JSON) -> JSON:
        if number not in self._sockets:
            self._sockets[number] = await self._open.enter_async_context(socket(self._api))
        await self._sockets[number].send(**frame)
        return _check_events(await self._sockets[number].read_to_end())


def _check_events(events: list[JSON]) -> JSON:
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    ended: JSON = events[-1]["response"]
    return ended


@EVERY
def test_every_scenario_of_a_client_is_recorded(client: Client) -> None:
    assert {one.scenario for one in load(client.name)} == set(client.scenarios)
