"""The attacks: what one project with a valid key, or none, can do to all others.

Each does one thing and counts the answers. `refused_with` names the answers of which at least one
must come; an attack without them is allowed to be served, if nobody else notices.
"""

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from models import keys
from tests.chaos.abuse.offender import Offender, as_json
from tests.support.api import JSON
from tests.support.fake_upstream import Exchange, Step, call, done, finish, hang, reply, text, usage
from tests.support.mcp_servers import Fault, RawExchange, rpc_result
from tests.support.memory_limit import MIB

Run = Callable[[Offender], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AttackKind:
    """One kind of attack."""

    name: str
    run: Run
    refused_with: frozenset[str]
    is_quick: bool
    """Whether it takes few seconds, so that CI runs it too."""


ATTACKS: list[AttackKind] = []
_LATER = frozenset({"429", "503"})
"""Answers that refuse any attack."""


def _attack(name: str, *refused_with: str, quick: bool = False) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        answers = frozenset(refused_with) | _LATER if refused_with else frozenset()
        ATTACKS.append(AttackKind(name, run, answers, quick))
        return run

    return register


# --- before the key is known ---


@_attack("endless header", "431", quick=True)
async def _endless_header(offender: Offender) -> None:
    start = b"GET /v1/models HTTP/1.1\r\nhost: x\r\na: "
    await offender.all(offender.send(start, forever=b"x" * 65536) for _ in range(4))


@_attack("100 MiB of headers", "431", quick=True)
async def _many_headers(offender: Offender) -> None:
    lines = b"".join(b"h%d: %s\r\n" % (number, b"x" * 1000) for number in range(1000))
    start = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
    await offender.all(offender.send(start, *[lines] * 100) for _ in range(4))


@_attack("half heads", "408", "closed")
async def _half_heads(offender: Offender) -> None:
    await offender.all(offender.send(b"GET /v1/mod") for _ in range(200))


@_attack("half bodies", "408", quick=True)
async def _half_bodies(offender: Offender) -> None:
    head = offender.head("POST", "/responses", content_length=60 * MIB)
    await offender.all(offender.send(head, b'{"model": "') for _ in range(50))


@_attack("guessed keys", "401", quick=True)
async def _guessed_keys(offender: Offender) -> None:
    def guess() -> bytes:
        key = f"bb-{secrets.token_urlsafe(32)}".encode()
        return b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + key + b"\r\n\r\n"

    await offender.all(offender.send(guess()) for _ in range(300))


@_attack("1 500 connections")
async def _connections(offender: Offender) -> None:
    async with contextlib.AsyncExitStack() as connections:
        opened = [await connections.enter_async_context(offender.connection()) for _ in range(1500)]
        reader, _ = opened[-1]
        async with asyncio.timeout(5):
            line = await reader.readline()
        offender.count(line.split()[1].decode() if line else "closed")


# --- one request ---


@functools.cache
def _repeated(start: bytes, piece: bytes, end: bytes, size: int) -> bytes:
    return start + piece * (size // len(piece)) + end


_SCHEMA = (
    b'{"model": "m", "input": "x", "text": {"format": {"type": "json_schema", "name": "x", '
    b'"schema": {"type": "object", "properties": {"a": {"enum": ['
)


async def _post(offender: Offender, body: bytes, count: int) -> None:
    await offender.all(offender.call("POST", "/responses", body) for _ in range(count))


@_attack("60 MiB of [],", "400", "413", quick=True)
async def _empty_lists(offender: Offender) -> None:
    await _post(offender, _repeated(b"[", b"[],", b"0]", 60 * MIB), 2)


@_attack("60 MiB of {} in an enum", "400", "413", quick=True)
async def _enum(offender: Offender) -> None:
    await _post(offender, _repeated(_SCHEMA, b"{},", b"0]}}}}}}", 60 * MIB), 2)


@_attack("4 MiB of {} in an enum, 20 at once", "400", "413")
async def _small_enums(offender: Offender) -> None:
    await _post(offender, _repeated(_SCHEMA, b"{},", b"0]}}}}}}", 3 * MIB), 20)


@_attack("metadata of 2 MiB, 40 at once", "400", "413", quick=True)
async def _metadata(offender: Offender) -> None:
    start = b'{"model": "m", "input": "x", "metadata": {"a": "'
    await _post(offender, _repeated(start, b"abc", b'"}}', 2 * MIB), 40)


@_attack("deep nesting", "400", "413", quick=True)
async def _deep(offender: Offender) -> None:
    start = b'{"model": "m", "input": "x", "metadata": '
    body = start + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    await _post(offender, body, 4)


@functools.cache
def _image(size: int) -> JSON:
    url = "data:image/png;base64," + "QUJD" * (size // 4)
    content = [{"type": "input_image", "image_url": url}]
    return {"type": "message", "role": "user", "content": content}


@functools.cache
def _image_body(model: str) -> bytes:
    return as_json({"model": model, "input": [_image(60 * MIB)], "background": True})


@_attack("bodies of 60 MiB, 6 at once")
async def _large_bodies(offender: Offender) -> None:
    body = _image_body(offender.model(reply("small")))
    _image_body.cache_clear()
    await _post(offender, body, offender.many(6, 3))


@_attack("input_items of a response of 60 MiB, 8 at once")
async def _input_items(offender: Offender) -> None:
    body = _image_body(offender.model(reply("small")))
    _image_body.cache_clear()
    answer = await offender.insist("/responses", body)
    if answer is not None and answer.status == 200:
        path = f"/responses/{answer.body['id']}"
        await offender.all(offender.call("GET", f"{path}/input_items") for _ in range(8))
        await offender.all(offender.call("GET", path) for _ in range(8))
        await offender.call("DELETE", path)


# --- WebSockets ---


_REFUSED_SOCKET = ("close 1008", "close 1009", "close 1013")


async def _on_socket(
    offender: Offender, act: Callable[[ClientConnection], Awaitable[None]]
) -> None:
    """Opens a socket, does something, and counts the code with which the server closes it."""
    url = f"ws://127.0.0.1:{offender.port}/v1/responses"
    headers = {"authorization": f"Bearer {offender.key}"}
    try:
        async with (
            asyncio.timeout(30),
            connect(
                url,
                additional_headers=headers,
                proxy=None,
                max_size=None,
                compression=None,
                ping_interval=None,
                local_addr=(offender.address, 0),
            ) as connection,
        ):
            with contextlib.suppress(ConnectionClosed):
                await act(connection)
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await connection.recv()
            offender.count(f"close {connection.close_code}")
    except InvalidHandshake as refused:
        response = getattr(refused, "response", None)
        offender.count(response.status_code if response is not None else "closed")
    except TimeoutError:
        offender.count("socket stays open")
    except OSError:
        offender.count("closed")


@_attack("fragments of a WebSocket message that never ends", *_REFUSED_SOCKET)
async def _fragments(offender: Offender) -> None:
    async def pieces(connection: ClientConnection) -> None:
        async def endless() -> object:
            for _ in range(offender.many(400, 80)):
                yield "x" * MIB
            await asyncio.sleep(30)

        await connection.send(endless())  # type: ignore[arg-type]

    await offender.all(_on_socket(offender, pieces) for _ in range(8))


@_attack("WebSocket messages of 70 MiB", *_REFUSED_SOCKET)
async def _big_messages(offender: Offender) -> None:
    async def message(connection: ClientConnection) -> None:
        await connection.send("x" * 70 * MIB)

    await offender.all(_on_socket(offender, message) for _ in range(4))


@_attack("300 idle WebSockets", "429")
async def _many_sockets(offender: Offender) -> None:
    async def idle(connection: ClientConnection) -> None:
        await asyncio.sleep(3)
        await connection.close()

    await offender.all(_on_socket(offender, idle) for _ in range(300))


# --- streams ---


@_attack("80 readers that read nothing of 8 MiB")
async def _slow_readers(offender: Offender) -> None:
    model = offender.model([text(*["x" * 1000] * 8_000), finish(), usage(), done()])
    created = await offender.create(model)
    if created is None:
        return
    head = offender.head("GET", f"/responses/{created}?stream=true")
    async with contextlib.AsyncExitStack() as connections:
        for _ in range(80):
            _, writer = await connections.enter_async_context(offender.connection(4096))
            writer.write(head)
        await offender.end(created)


@_attack("500 open streams", "429")
async def _open_streams(offender: Offender) -> None:
    model = offender.model([hang()])
    body = as_json({"model": model, "input": "x", "stream": True})

    async def stream() -> None:
        with contextlib.suppress(TimeoutError, OSError):
            async with offender.connection() as (reader, writer):
                writer.write(offender.head("POST", "/responses", content_length=len(body)) + body)
                async with asyncio.timeout(10):
                    line = await reader.readline()
                offender.count(line.split()[1].decode() if line else "closed")
                await asyncio.sleep(3)
            return
        offender.count("no answer")

    await offender.all(stream() for _ in range(500))


@_attack("10 000 queued jobs", "429")
async def _queue(offender: Offender) -> None:
    async def pause(exchange: Exchange) -> None:
        await asyncio.sleep(10)
        await exchange.begin()

    model = offender.model([pause, *reply("done")])
    ids: list[str | None] = []
    for _ in range(offender.many(100, 6)):
        ids += await offender.all(offender.create(model) for _ in range(100))
    created = [one for one in ids if one is not None]
    await offender.all(
        offender.api.call("POST", f"/responses/{one}/cancel", b"") for one in created
    )


@_attack("60 cached answers of 750 KiB")
async def _cache(offender: Offender) -> None:
    model = offender.model([text("x" * 750 * 1024), finish(), usage(), done()])
    ids = await offender.all(
        offender.create(model, input=f"{number}", cache=True) for number in range(60)
    )
    await offender.end(*ids)


# --- one response ---


def _flood(piece: str) -> Step:
    async def step(exchange: Exchange) -> None:
        while True:
            await exchange.delta({"content": piece})
            await asyncio.sleep(0)

    return step


@_attack(
    "endless upstream output, 8 at once",
    "incomplete max_output_tokens",
    "failed server_error",
    "cancelled by the client",
)
async def _endless_output(offender: Offender) -> None:
    model = offender.model([_flood("x" * 4000), done()])
    await offender.end(*await offender.all(offender.create(model) for _ in range(8)))


@_attack("a conversation of 240 MiB, continued by small creates", "400")
async def _history(offender: Offender) -> None:
    model = offender.model(reply("small"))
    created = await offender.call("POST", "/conversations", {})
    if created is None or created.status != 200:
        return
    path = f"/conversations/{created.body['id']}"
    items = as_json({"items": [_image(60 * MIB)]})
    for _ in range(4):
        answer = await offender.insist(f"{path}/items", items)
        if answer is None or answer.status != 200:
            break
    conversation = created.body["id"]
    for _ in range(2):
        await offender.end(await offender.create(model, conversation=conversation))
    await offender.call("DELETE", path)


@_attack(
    "a history of 4 x 60 MiB, continued by four small creates at once",
    "400",
    "failed invalid_prompt",
)
async def _chain(offender: Offender) -> None:
    model = offender.model(reply("small"))
    previous: JSON = {}
    for _ in range(4):
        body = {"model": model, "input": [_image(60 * MIB)], "background": True, **previous}
        answer = await offender.insist("/responses", as_json(body))
        if answer is None or answer.status != 200:
            break
        await offender.end(answer.body["id"])
        previous = {"previous_response_id": answer.body["id"]}
    await offender.end(*await offender.all(offender.create(model, **previous) for _ in range(4)))


@_attack("endless files, 8 at once", quick=True)
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


@_attack("24 MCP servers of 1 000 tools, 3 at once", "400", quick=True)
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


@_attack("MCP results of 200 000 empty blocks, 4 at once", quick=True)
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


@_attack("endless MCP results, 4 at once")
async def _endless_results(offender: Offender) -> None:
    await _call_tool(offender, _endless_result, 4)


# --- keys ---


@_attack("keys that are made and used at once", quick=True)
async def _key_rotation(offender: Offender) -> None:
    for _ in range(5):
        offender.key = await asyncio.to_thread(
            keys.create, offender.attacked.stack.dsn, offender.project
        )
        await offender.all(offender.call("GET", "/models") for _ in range(10))
