"""A scripted upstream: chat completions, and the Responses API with the steps of native_script.py.

A script is a list of steps, each a small coroutine over one `Exchange`. `FakeUpstream.script`
registers one under a model name and returns that name; given several scripts, the n-th request for
the model runs the n-th (the last one repeats). A model named `recording:<file>:<line>` replays a
recorded stream (line from 1).

    model = fake.script([text("Hello ", "world"), wait_for(opened), finish(), usage(), done()])

Every request is kept in `fake.requests`, with the moment at which the client closed, if it did. It
is written on a bare `asyncio.Protocol` because tests need what HTTP servers hide: resets, half
answers, bytes that are no JSON, and the moment at which a socket closes.
"""

import asyncio
import itertools
import json
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from python_multipart.multipart import parse_options_header

from tests.support.api import JSON

ALWAYS_LISTED_MODEL = "resident"
"""A model that is always listed, so that the list of models is never empty."""
Step = Callable[["Exchange"], Awaitable[None]]
Script = Sequence[Step]

_PATHS = frozenset(
    f"/v1/{path}"
    for path in (
        *(
            "responses",
            "messages",
            "chat/completions",
            "completions",
            "embeddings",
            "rerank",
            "moderations",
        ),
        *("audio/speech", "audio/transcriptions", "audio/translations"),
        *("images/generations", "images/edits", "images/variations"),
    )
)
"""Paths at which scripts answer."""
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    429: "Too Many Requests",
    500: "Internal Server Error",
}


class ClientClosed(Exception):
    """The client closed the connection before the script ended."""


@dataclass(slots=True)
class UpstreamRequest:
    """A request to the upstream and how it ended. Moments are `time.monotonic()`."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: JSON
    started: float
    closed_by_client: float | None = None
    """When the client closed the connection before the script ended."""
    finished: float | None = None
    """When the script ended."""
    query: str = ""
    """The query of its path."""
    sent_text: list[tuple[float, str]] = field(default_factory=list)
    """The pieces of text that were sent, each with its moment."""
    finish_reason_sent: bool = False
    """Whether the answer has a finish reason. With `finished` it is a complete turn."""
    items: list[JSON] = field(default_factory=list)
    """The items that a native answer has sent completely (tests/support/native_script.py)."""
    events: int = 0
    """How many events were sent."""
    files: dict[str, bytes] = field(default_factory=dict)
    """The files of a form, by the names of their parts; its fields are in `body`."""

    @property
    def model(self) -> str:
        return str(self.body.get("model"))

    @property
    def messages(self) -> list[JSON]:
        return cast("list[JSON]", self.body["messages"])

    @property
    def body_text(self) -> str:
        """The messages as JSON; of a native request its input."""
        return json.dumps(self.body.get("messages", self.body.get("input")))

    @property
    def texts(self) -> list[str]:
        """The texts of all messages of users and of the model, in order."""
        messages = self.body.get("messages", self.body.get("input"))
        return [
            _text_of(message["content"])
            for message in (messages if isinstance(messages, list) else [])
            if message.get("role") in ("user", "assistant") and message.get("content")
        ]

    @property
    def is_open(self) -> bool:
        return self.closed_by_client is None and self.finished is None


def _text_of(content: str | list[JSON]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


class Exchange:
    """The answer to one request. Steps write through it."""

    def __init__(self, request: UpstreamRequest, connection: "_Connection") -> None:
        self.request = request
        self._connection = connection
        self.is_streaming = False
        self.is_unstreamed = (
            request.path.endswith("/chat/completions") and request.body.get("stream") is not True
        )
        """Whether the request is not for a stream.

        The chunks are then sent as one answer at the end.
        """
        self._chunks: list[JSON] = []

    async def begin(self, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Sends the head of a stream, once."""
        if not self.is_streaming and not self.is_unstreamed:
            self.is_streaming = True
            fields = {
                "content-type": "text/event-stream; charset=utf-8",
                "transfer-encoding": "chunked",
                **(headers or {}),
            }
            await self._connection.send(_head(status, fields))

    async def write(self, data: bytes) -> None:
        """Sends bytes of a stream's body."""
        if self.is_unstreamed:
            return
        await self.begin()
        if data:  # an empty piece would end a chunked body
            await self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, data: JSON) -> None:
        """Sends one chunk as an SSE event."""
        if self.is_unstreamed:
            self._chunks.append(data)
            return
        await self.write(b"data: %b\n\n" % json.dumps(data, ensure_ascii=False).encode())

    async def delta(self, delta: JSON, **choice: Any) -> None:
        """Sends one chunk with one choice."""
        if content := delta.get("content"):
            self.request.sent_text.append((time.monotonic(), content))
        self.request.finish_reason_sent |= choice.get("finish_reason") is not None
        await self.event(
            self.envelope(
                [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **choice}]
            )
        )

    def envelope(self, choices: list[JSON], **more: Any) -> JSON:
        """A `chat.completion.chunk` around `choices`."""
        return {
            "id": f"chatcmpl-{id(self.request):x}",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": self.request.model,
            "choices": choices,
            **more,
        }

    async def begin_body(self, status: int, headers: Mapping[str, str]) -> None:
        """Sends the head of a body of any type, which `write` and `end` then send in chunks."""
        self.is_streaming, self.is_unstreamed = True, False
        await self._connection.send(_head(status, {"transfer-encoding": "chunked", **headers}))

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Sends a complete answer that is no stream."""
        await self._connection.send(
            _head(status, {"content-length": str(len(body)), **headers}) + body
        )

    async def end(self) -> None:
        """Ends a chunked body, or sends the chunks as one answer."""
        if self._chunks and not self._connection.is_closing:
            await self.answer(
                200,
                json.dumps(_completion(self._chunks)).encode(),
                {"content-type": "application/json"},
            )
        if self.is_streaming and not self._connection.is_closing:
            await self._connection.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Closes the connection with RST."""
        self._connection.reset()

    def drop(self) -> None:
        """Closes the connection with FIN, in the middle of the body."""
        self._connection.drop()

    async def wait_closed(self) -> None:
        """Waits until the client has closed the connection."""
        await self._connection.closed.wait()


def _completion(chunks: list[JSON]) -> JSON:
    """The `chat.completion` that these chunks make together."""
    message: JSON = {"role": "assistant", "content": None}
    calls: dict[int, JSON] = {}
    whole = {
        **chunks[0],
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": None}],
    }
    for chunk in chunks:
        whole |= {"usage": chunk["usage"]} if "usage" in chunk else {}
        for choice in chunk["choices"]:
            whole["choices"][0]["finish_reason"] = (
                choice["finish_reason"] or whole["choices"][0]["finish_reason"]
            )
            if text := choice["delta"].get("content"):
                message["content"] = (message["content"] or "") + text
            for call in choice["delta"].get("tool_calls", ()):
                known = calls.setdefault(
                    call["index"], {**call, "function": {**call["function"], "arguments": ""}}
                )
                known["function"]["arguments"] += call["function"]["arguments"]
    return (
        whole
        if not calls
        else {
            **whole,
            "choices": [
                {**whole["choices"][0], "message": {**message, "tool_calls": list(calls.values())}}
            ],
        }
    )


def _head(status: int, fields: Mapping[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}",
        *(f"{name}: {value}" for name, value in fields.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


# Steps.


def chunk(data: JSON) -> Step:
    """Sends this JSON as one event."""

    async def step(exchange: Exchange) -> None:
        await exchange.event(data)

    return step


def delta(fields: JSON, **choice: Any) -> Step:
    """Sends one chunk whose only choice has this delta."""

    async def step(exchange: Exchange) -> None:
        await exchange.delta(fields, **choice)

    return step


def text(*pieces: str, gap: float = 0) -> Step:
    """Sends each piece as a content delta, `gap` seconds apart."""

    async def step(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.delta({"content": piece})
            if gap:
                await asyncio.sleep(gap)

    return step


def reasoning(*pieces: str) -> Step:
    """Sends each piece as a reasoning delta, under vLLM's name."""

    async def step(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.delta({"reasoning": piece})

    return step


def refusal(*pieces: str) -> Step:
    """Sends each piece as a refusal delta."""

    async def step(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.delta({"refusal": piece})

    return step


def call(index: int, call_id: str, name: str, *arguments: str) -> Step:
    """Sends one function call: its head, then its arguments piece by piece."""

    async def step(exchange: Exchange) -> None:
        head = {
            "index": index,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        await exchange.delta({"tool_calls": [head]})
        for piece in arguments:
            await exchange.delta(
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            )

    return step


def finish(reason: str = "stop") -> Step:
    """Sends the chunk with the reason why the model stopped."""
    return delta({}, finish_reason=reason)


def usage(
    prompt: int = 11, completion: int = 7, *, cached: int = 0, reasoning_tokens: int = 0
) -> Step:
    """Sends the usage chunk, whose `choices` is empty."""
    counted = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }

    async def step(exchange: Exchange) -> None:
        await exchange.event(exchange.envelope([], usage=counted))

    return step


def done() -> Step:
    """Sends `data: [DONE]`."""
    return raw(b"data: [DONE]\n\n")


def raw(data: bytes) -> Step:
    """Sends these bytes in the body."""

    async def step(exchange: Exchange) -> None:
        await exchange.write(data)

    return step


def begin_body(content_type: str) -> Step:
    """Sends the head of a body of this type in chunks. `raw` sends its pieces."""

    async def step(exchange: Exchange) -> None:
        await exchange.begin_body(200, {"content-type": content_type})

    return step


def wait_for(event: asyncio.Event) -> Step:
    """Sends the head of the stream, then waits for the event."""

    async def step(exchange: Exchange) -> None:
        await exchange.begin()
        await event.wait()

    return step


def silence_until(event: asyncio.Event) -> Step:
    """Waits for the event and sends nothing before, not even the head."""

    async def step(exchange: Exchange) -> None:
        await event.wait()

    return step


def hang() -> Step:
    """Sends nothing more until the client closes the connection."""

    async def step(exchange: Exchange) -> None:
        await exchange.wait_closed()

    return step


def reset() -> Step:
    """Ends the connection with RST."""

    async def step(exchange: Exchange) -> None:
        exchange.reset()

    return step


def drop() -> Step:
    """Ends the connection with FIN in the middle of the body."""

    async def step(exchange: Exchange) -> None:
        exchange.drop()

    return step


def fail(message: str = "The fake upstream fails.") -> Step:
    """Reports an error that blames the request, so that no turn is repeated: the response fails."""
    return chunk({"error": {"message": message, "code": 400}})


def error_body(message: str, kind: str, code: str | None = None) -> JSON:
    """The error envelope of OpenAI's API."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def status(
    code: int,
    body: JSON | bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    retry: bool = False,
) -> Step:
    """Sends a complete answer with this status.

    Unless `retry`, a header stops retries of the SDK.
    """
    content = error_body(f"The fake upstream says {code}.", "fake") if body is None else body
    fields = {
        "content-type": "application/json",
        "x-should-retry": "true" if retry else "false",
        **(headers or {}),
    }

    async def step(exchange: Exchange) -> None:
        await exchange.answer(
            code, content if isinstance(content, bytes) else json.dumps(content).encode(), fields
        )

    return step


def reply(*pieces: str, gap: float = 0) -> list[Step]:
    """The steps of a complete ordinary answer: text, finish, usage, [DONE]."""
    return [text(*pieces, gap=gap), finish(), usage(), done()]


class _Connection(asyncio.Protocol):
    """One TCP connection, HTTP/1.1 with keep-alive."""

    def __init__(self, upstream: "FakeUpstream") -> None:
        self._upstream = upstream
        self._received = bytearray()
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._request: UpstreamRequest | None = None
        self.closed = asyncio.Event()

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._upstream.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._upstream.connections.discard(self)
        if self._request is not None and self._request.is_open:
            self._request.closed_by_client = time.monotonic()
        self.closed.set()
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._upstream.bytes_received += len(data)
        self._next_request()

    def pause_reading(self) -> None:
        """Receives nothing more, so that the client cannot send more than sockets hold."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receives again."""
        self._transport.resume_reading()

    def _next_request(self) -> None:
        if self._task is not None or (head_end := self._received.find(b"\r\n\r\n")) < 0:
            return
        first, *lines = self._received[:head_end].decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        if "transfer-encoding" in headers:
            self._upstream.on_upload(self)
            if not self._received.endswith(b"\r\n0\r\n\r\n"):
                return
            body = _unchunked(self._received[head_end + 4 :])
            self._received.clear()
        else:
            body_end = head_end + 4 + int(headers.get("content-length", "0"))
            if len(self._received) < body_end:
                return
            body = bytes(self._received[head_end + 4 : body_end])
            del self._received[:body_end]
        fields, files = _decoded(headers.get("content-type", ""), body)
        method, target, _ = first.split(" ")
        path, _, query = target.partition("?")
        self._request = UpstreamRequest(
            method, path, headers, fields, time.monotonic(), query=query, files=files
        )
        self._upstream.requests.append(self._request)
        self._task = asyncio.create_task(self._answer(self._request))

    async def _answer(self, request: UpstreamRequest) -> None:
        exchange = Exchange(request, self)
        try:
            for step in self._upstream.steps_for(request):
                await step(exchange)
            await exchange.end()
        except ClientClosed:
            return
        except Exception as fault:  # noqa: BLE001  # must not look like a fault of the product
            self._upstream.faults.append(fault)
            self.reset()
            return
        if request.is_open:
            request.finished = time.monotonic()
        self._task = None
        self._next_request()

    async def send(self, data: bytes) -> None:
        if self.is_closing:
            raise ClientClosed
        self._transport.write(data)
        await self._writable.wait()

    def reset(self) -> None:
        self._mark_finished()
        raw_socket = self._transport.get_extra_info("socket")
        raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def drop(self) -> None:
        self._mark_finished()
        self._transport.close()

    def _mark_finished(self) -> None:
        """Notes that the script ended the connection, not the client."""
        if self._request is not None and self._request.is_open:
            self._request.finished = time.monotonic()


def ignore(_: _Connection) -> None:
    """Does nothing."""


def _unchunked(data: bytes | bytearray) -> bytes:
    """A complete body without its chunks."""
    pieces, at = [], 0
    while size := int(data[at : (line_end := data.index(b"\r\n", at))], 16):
        pieces.append(data[line_end + 2 : line_end + 2 + size])
        at = line_end + size + 4
    return b"".join(pieces)


def _decoded(content_type: str, body: bytes) -> tuple[JSON, dict[str, bytes]]:
    """The fields of a body, JSON or a form, and the files of a form."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        return (json.loads(body) if body else {}), {}
    parts = body.split(b"--" + options[b"boundary"])
    assert (parts[0], parts[-1]) == (b"", b"--\r\n"), "not the form that this server writes"
    fields: JSON = {}
    files: dict[str, bytes] = {}
    for part in parts[1:-1]:
        head, _, value = part.removeprefix(b"\r\n").removesuffix(b"\r\n").partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        disposition = next(
            line.partition(": ")[2] for line in lines if line.lower().startswith("content-disp")
        )
        _, names = parse_options_header(disposition)
        name = names[b"name"].decode()
        if b"filename" in names:
            files[name] = value
        else:
            fields[name] = value.decode()
    return fields, files


@dataclass(slots=True, repr=False)
class FakeUpstream:
    """The server. `async with FakeUpstream(recordings) as fake: … fake.base_url`.

    Without a repr of its fields: asyncio makes one of whatever a fixture returns, and that of
    thousands of requests takes a minute.
    """

    recordings: Path | None = None
    requests: list[UpstreamRequest] = field(default_factory=list)
    connections: set[_Connection] = field(default_factory=set)
    faults: list[BaseException] = field(default_factory=list)
    """Errors of the double itself. A test session with one of these fails."""
    base_url: str = ""
    port: int = 0
    """The port to listen on; 0: any free port."""
    _scripts: dict[str, list[Script]] = field(default_factory=dict)
    count_answers: dict[str, Script] = field(default_factory=dict)
    """Path of a route that counts tokens -> the script of its answer. Other paths answer 404."""
    _deciders: dict[str, Callable[[UpstreamRequest], Script]] = field(default_factory=dict)
    _request_counts: dict[str, int] = field(default_factory=dict)
    _names: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _server: asyncio.Server | None = None
    bytes_received: int = 0
    """of all requests"""
    on_upload: Callable[[_Connection], None] = ignore
    """Called with the connection of a request in chunks whenever some of it has arrived."""

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self.port, backlog=2048
        )
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self.connections):
            connection.drop()
            await connection.closed.wait()

    def script(self, *scripts: Script, name: str | None = None) -> str:
        """Registers a model and returns its name.

        The n-th request runs the n-th script; when there are more requests than scripts, the last
        one repeats.
        """
        model = name or f"script-{next(self._names)}"
        self._scripts[model] = list(scripts)
        return model

    def decide(self, name: str, decider: Callable[[UpstreamRequest], Script]) -> None:
        """Registers a model whose script is chosen by its request."""
        self._deciders[name] = decider

    def requests_for(self, model: str) -> list[UpstreamRequest]:
        """The POST requests for this model so far, in order."""
        return [
            request
            for request in self.requests
            if request.method == "POST" and request.model == model
        ]

    def steps_for(self, request: UpstreamRequest) -> Script:
        if request.method == "GET" and request.path == "/v1/models":
            return [_listing(sorted({ALWAYS_LISTED_MODEL, *self._scripts, *self._deciders}))]
        if request.path in self.count_answers:
            return self.count_answers[request.path]
        if request.method != "POST" or request.path not in _PATHS:
            return [status(404)]
        if request.model.startswith("recording:"):
            return self._recorded(request.model)
        if request.model in self._deciders:
            return self._deciders[request.model](request)
        scripts = self._scripts.get(request.model)
        if scripts is None:
            message = f"The model `{request.model}` does not exist."
            return [status(404, error_body(message, "invalid_request_error", "model_not_found"))]
        count = self._request_counts[request.model] = self._request_counts.get(request.model, 0) + 1
        return scripts[min(count, len(scripts)) - 1]

    def _recorded(self, model: str) -> Script:
        _, file, line = model.split(":")
        assert self.recordings is not None, "the folder of recordings does not exist"
        recorded = recording(self.recordings, file, int(line))
        return [*map(chunk, recorded["chunks"]), done()]


def recording(folder: Path, file: str, line: int) -> JSON:
    """The recorded request and chunks in a line (counted from 1) of `<folder>/<file>`."""
    name = file if file.endswith(".jsonl") else f"{file}.jsonl"
    with (folder / name).open("rb") as lines:
        return cast("JSON", json.loads(next(itertools.islice(lines, line - 1, None))))


def _listing(models: list[str]) -> Step:
    data = [
        {"id": model, "object": "model", "created": 1700000000, "owned_by": "fake"}
        for model in models
    ]
    return status(200, {"object": "list", "data": data})
