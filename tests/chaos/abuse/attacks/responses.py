"""Attacks by what one response loads, lists, calls or produces, and by new keys."""

import asyncio
import contextlib

from tests.chaos.abuse.attacks.bodies import image
from tests.chaos.abuse.kinds import attack
from tests.chaos.abuse.offender import Offender, as_json
from tests.support import keys
from tests.support.api import JSON
from tests.support.fake_upstream import Exchange, Step, call, done, finish, reply, usage
from tests.support.mcp_servers import Fault, RawExchange, rpc_result
from tests.support.memory_limit import MIB


def _flood(piece: str) -> Step:
    async def step(exchange: Exchange) -> None:
        while True:
            await exchange.delta({"content": piece})
            await asyncio.sleep(0)

    return step


@attack(
    "endless upstream output, 8 at once",
    "incomplete max_output_tokens",
    "failed server_error",
    "cancelled by the client",
)
async def _endless_output(offender: Offender) -> None:
    model = offender.model([_flood("x" * 4000), done()])
    await offender.end(*await offender.all(offender.create(model) for _ in range(8)))


@attack("a conversation of 240 MiB, continued by small creates", "400")
async def _history(offender: Offender) -> None:
    model = offender.model(reply("small"))
    created = await offender.call("POST", "/conversations", {})
    if created is None or created.status != 200:
        return
    path = f"/conversations/{created.body['id']}"
    items = as_json({"items": [image(60 * MIB)]})
    for _ in range(4):
        answer = await offender.insist(f"{path}/items", items)
        if answer is None or answer.status != 200:
            break
    conversation = created.body["id"]
    for _ in range(2):
        await offender.end(await offender.create(model, conversation=conversation))
    await offender.call("DELETE", path)


@attack(
    "a history of 4 x 60 MiB, continued by four small creates at once",
    "400",
    "failed invalid_prompt",
)
async def _chain(offender: Offender) -> None:
    model = offender.model(reply("small"))
    previous: JSON = {}
    for _ in range(4):
        body = {"model": model, "input": [image(60 * MIB)], "background": True, **previous}
        answer = await offender.insist("/responses", as_json(body))
        if answer is None or answer.status != 200:
            break
        await offender.end(answer.body["id"])
        previous = {"previous_response_id": answer.body["id"]}
    await offender.end(*await offender.all(offender.create(model, **previous) for _ in range(4)))


@attack("endless files, 8 at once", quick=True)
async def _files(offender: Offender) -> None:
    model = offender.model(reply("small"))

    def content(number: int) -> JSON:
        url = f"{offender.servers.files}/{number}.png"
        return {"role": "user", "content": [{"type": "input_file", "file_url": url}]}

    ids = await offender.all(offender.create(model, input=[content(n)]) for n in range(8))
    await offender.end(*ids)


def _mcp(url: str, label: str) -> JSON:
    return {"type": "mcp", "server_label": label, "server_url": url, "require_approval": "never"}


_TOOLS = {
    "tools": [
        {
            "name": f"tool_{number}",
            "description": "x" * 1500,
            "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}},
        }
        for number in range(1000)
    ]
}


@attack("24 MCP servers of 1 000 tools, 3 at once", "400", quick=True)
async def _tools(offender: Offender) -> None:
    url = offender.servers.mcp.url_with_fault("plain", "tools/list", rpc_result(_TOOLS))
    tools = [_mcp(url, f"s{number}") for number in range(24)]
    model = offender.model(reply("small"))
    ids = await offender.all(offender.create(model, tools=tools) for _ in range(3))
    await offender.end(*ids)


async def _call_tool(offender: Offender, fault: Fault, count: int) -> None:
    """Lets the model call a tool whose result is `fault`."""
    url = offender.servers.mcp.url_with_fault("plain", "tools/call", fault)
    turn = [call(0, "call_0", "echo", '{"text": "x"}'), finish("tool_calls"), usage(), done()]
    models = [offender.model(turn, reply("small")) for _ in range(count)]
    tools = [_mcp(url, "plain")]
    await offender.end(*await offender.all(offender.create(one, tools=tools) for one in models))


@attack("MCP results of 200 000 empty blocks, 4 at once", quick=True)
async def _blocks(offender: Offender) -> None:
    content = [{"type": "text", "text": ""}] * 200_000
    await _call_tool(offender, rpc_result({"content": content}), 4)


async def _endless_result(wire: RawExchange) -> None:
    headers = [(b"content-type", b"application/json")]
    await wire.send({"type": "http.response.start", "status": 200, "headers": headers})
    piece = b'{"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "'
    with contextlib.suppress(OSError):
        for _ in range(4096):
            await wire.send({"type": "http.response.body", "body": piece, "more_body": True})
            piece = b"x" * 65536


@attack("endless MCP results, 4 at once")
async def _endless_results(offender: Offender) -> None:
    await _call_tool(offender, _endless_result, 4)


@attack("keys that are made and used at once", quick=True)
async def _key_rotation(offender: Offender) -> None:
    for _ in range(5):
        offender.key = await asyncio.to_thread(
            keys.create, offender.attacked.stack.dsn, offender.project
        )
        await offender.all(offender.call("GET", "/models") for _ in range(10))
