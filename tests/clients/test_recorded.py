"""Requests that real clients sent, sent again: each must be answered as it was then, and every answer must obey the contract.

`./dev test tests/clients --live --record` runs the clients themselves and renews the recordings.
"""

import pytest

from tests.api import JSON, Api, Stream
from tests.clients.catalogue import CLIENTS, Client
from tests.clients.recorded import Recorded, filled, load, places_in
from tests.contract.strict_types import check_event, check_response
from tests.contract_rules import assert_stream_obeys_contract
from tests.mcp_servers import McpServers
from tests.stack import Stack

EVERY = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


@EVERY
async def test_what_a_client_sent_is_answered_as_it_was(tooled: Stack, mcp_servers: McpServers, client: Client) -> None:
    api = tooled.api()
    places = {"mcp": mcp_servers.url("plain")}
    for number, one in enumerate(load(client.name)):
        answer = await _again(api, one, filled(one.path, places), filled(one.body, places))
        places |= places_in(number, answer)
        if one.output is not None:
            assert [item["type"] for item in answer["output"]] == one.output, (one.scenario, answer)


async def _again(api: Api, one: Recorded, path: str, body: JSON | None) -> JSON:
    """Send one request again, and look at every byte of the answer; the JSON of the answer, or the response that a stream ended with."""
    if body is not None and body.get("stream"):
        async with api.post_stream(**body) as stream:
            return await _checked(stream)
    answer = await api.call(one.method, path, body)
    assert answer.status == one.status, (one.scenario, answer.raw)
    found = answer.body
    if found.get("object") == "response" and "deleted" not in found:
        check_response(found)
        if found["status"] == "queued":
            found = await api.ended(found["id"])
    return found


async def _checked(stream: Stream) -> JSON:
    events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    return stream.final


@EVERY
def test_every_scenario_of_a_client_is_recorded(client: Client) -> None:
    assert {one.scenario for one in load(client.name)} == set(client.scenarios)
