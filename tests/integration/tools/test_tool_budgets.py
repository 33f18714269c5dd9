"""What MCP servers send costs a worker a bounded amount of memory, however many there are and
whatever they list and answer."""

import asyncio
import json

import psutil

from tests.support.api import JSON, until
from tests.support.fake_upstream import FakeUpstream, call, done, finish, reply, wait_for
from tests.support.mcp_servers import Fault, McpServers, RawExchange, http_answer
from tests.support.stack import Stack
from tests.support.upstream_faults import memory_growth

MIB = 1024 * 1024


def _encoded_result(result: bytes) -> Fault:
    """Sends a result that was encoded before: the server shares a processor with the worker."""

    async def fault(exchange: RawExchange) -> None:
        head = json.dumps({"jsonrpc": "2.0", "id": exchange.request.body["id"]}).encode()
        body = head[:-1] + b', "result": ' + result + b"}"
        await exchange.answer(200, {"content-type": "application/json"}, body)

    return fault


EMPTY_BLOCKS = _encoded_result(
    b'{"resultType": "complete", "content": ['
    + b",".join([b'{"type": "text", "text": ""}'] * 200_000)
    + b"]}"
)


def _server(url: str, label: str = "it") -> JSON:
    return {
        "type": "mcp",
        "server_label": label,
        "server_url": url,
        "require_approval": "never",
    }


def _listing(count: int, size: int) -> Fault:
    """So many tools, each with a description of this size."""
    tools = [
        {
            "name": f"tool_{number}",
            "description": "x" * size,
            "inputSchema": {"type": "object", "properties": {}},
        }
        for number in range(count)
    ]
    listing = {"resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private"}
    return _encoded_result(json.dumps(listing).encode())


async def test_results_of_200_000_blocks_are_failed_calls_and_cost_no_memory(
    tool_stack: Stack, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    """Each took 200 MB."""
    api = tool_stack.api()
    url = mcp_servers.url_with_fault("plain", "tools/call", EMPTY_BLOCKS)

    async def run() -> JSON:
        asked = call(0, "call_0", "echo", json.dumps({"text": "x"}))
        model = fake.script([asked, finish("tool_calls"), done()], reply("sorry"))
        return await api.create(model, tools=[_server(url)])

    await run()  # the worker has loaded everything
    responses, growth = await memory_growth(
        tool_stack.workers, asyncio.gather(*(run() for _ in range(3)))
    )
    for response in responses:
        assert response["status"] == "completed"
        made = response["output"][1]
        assert (made["type"], made["status"]) == ("mcp_call", "failed")
        assert "more than 32000 JSON values" in made["error"]["message"]
    assert growth < 100 * MIB


async def test_servers_that_list_too_much_together_fail_the_response(
    tool_stack: Stack, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    url = mcp_servers.url_with_fault("plain", "tools/list", _listing(700, 50))
    tools = [_server(url, f"server_{number}") for number in range(4)]
    body = {"model": fake.script(reply("x")), "input": "Hello.", "tools": tools}
    answer, growth = await memory_growth(
        tool_stack.workers, tool_stack.api().call("POST", "/responses", body)
    )
    assert (answer.status, answer.error["param"]) == (424, "tools")
    assert "together with the other servers" in answer.error["message"]
    assert growth < 100 * MIB


async def test_a_request_with_too_many_servers_is_refused(
    tool_stack: Stack, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    tools = [_server(mcp_servers.url("plain"), f"server_{number}") for number in range(17)]
    body = {"model": fake.script(reply("x")), "input": "Hello.", "tools": tools}
    answer = await tool_stack.api().call("POST", "/responses", body)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (
        400,
        "tools",
        "array_above_max_length",
    )


async def test_fetched_files_are_not_kept_while_their_models_are_silent(
    tool_stack: Stack, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    """Eight files of 8 MiB took 180 MB: as base64 in the history, and in the body that was sent."""
    file = http_answer(200, b"x" * (8 * MIB), "application/pdf")
    url = mcp_servers.url_with_fault("plain", "GET", file)
    body = {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": url}]}]}
    api, answered = tool_stack.api(), asyncio.Event()
    model = fake.script([wait_for(answered), *reply("read")])
    await api.create(fake.script(reply("x")), **body)
    before = _resident(tool_stack)
    responses = [await api.create_background(model, **body) for _ in range(8)]
    try:
        await until(lambda: len(fake.requests_for(model)) == 8, 60)
        assert _resident(tool_stack) - before < 90 * MIB
    finally:
        answered.set()
    for response in responses:
        assert (await api.wait_for_end(response))["status"] == "completed"


def _resident(stack: Stack) -> int:
    [worker] = stack.workers
    return int(psutil.Process(worker.pid).memory_info().rss)
