"""A project that attacks: its clients, the servers that the product calls for it, its answers."""

import asyncio
import contextlib
import itertools
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

from tests.support import keys
from tests.support.abuse import AttackedStack
from tests.support.api import JSON, TERMINAL, Api, HttpResponse
from tests.support.fake_upstream import FakeUpstream
from tests.support.mcp_servers import McpServers

_TRIES = 20
"""Of a request that the server has no time for."""
_PATIENCE = 20.0
"""Seconds for which an offender waits for an answer, or for the end of a response."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers that offenders make the product call."""

    upstream: FakeUpstream
    mcp: McpServers
    files: str
    """The address of a server that answers every path with an endless file."""

    def forget(self) -> None:
        """Forgets the requests so far: some have 60 MiB."""
        self.upstream.requests.clear()
        self.mcp.requests.clear()


@asynccontextmanager
async def endless_files() -> AsyncIterator[str]:
    """A server that answers each request with a body that does not end; yields its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n\r\n")
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@dataclass(slots=True)
class Offender:
    """One attacking project. It has an address of its own."""

    attacked: AttackedStack
    servers: Servers
    number: int
    scale: float
    """The size of attacks that take minutes, from 0 to 1."""
    answers: Counter[str] = field(default_factory=Counter)
    """Of the attack that runs."""
    key: str = ""
    port: int = 0
    """Of the web process, also of its successors."""
    session: aiohttp.ClientSession = field(init=False)
    _names: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def address(self) -> str:
        return f"127.0.1.{self.number + 1}"

    @property
    def project(self) -> str:
        return f"offender-{self.number}"

    async def __aenter__(self) -> Self:
        self.key = keys.create(self.attacked.stack.dsn, self.project)
        self.port = self.attacked.stack.webs[0].port or 0
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, local_addr=(self.address, 0)),
            timeout=aiohttp.ClientTimeout(total=_PATIENCE * 3),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    def many(self, full: int, least: int = 1) -> int:
        """How many of `full` are done at this scale."""
        return max(least, round(full * self.scale))

    def model(self, *scripts: Any) -> str:
        """A new model of the upstream that runs these scripts."""
        name = f"offender-{self.number}-{next(self._names)}"
        return self.servers.upstream.script(*scripts, name=name)

    @property
    def api(self) -> Api:
        return Api(f"http://127.0.0.1:{self.port}/v1", self.key, self.session)

    def count(self, answer: object) -> None:
        """Counts an answer of the server."""
        self.answers[str(answer)] += 1

    async def call(
        self, method: str, path: str, body: JSON | bytes | None = None
    ) -> HttpResponse | None:
        """Sends a request and counts the answer's status; None if there was none."""
        try:
            answer = await self.api.call(method, path, body)
        except (aiohttp.ClientError, ConnectionError):
            self.count("closed")
        except TimeoutError:
            self.count("no answer")
        else:
            self.count(answer.status)
            return answer
        return None

    async def insist(self, path: str, body: bytes) -> HttpResponse | None:
        """POSTs until the server has time for it (no 429 and no 503), but not for ever."""
        answer = None
        for _ in range(_TRIES):
            answer = await self.call("POST", path, body)
            if answer is None or answer.status not in (429, 503):
                break
            await asyncio.sleep(1)
        return answer

    async def create(self, model: str, **fields: Any) -> str | None:
        """Creates a background response; its id if it was accepted."""
        body = {"model": model, "input": "Hello.", "background": True, **fields}
        answer = await self.call("POST", "/responses", body)
        return answer.body["id"] if answer is not None and answer.status == 200 else None

    async def all(self, requests: Iterable[Awaitable[Any]]) -> list[Any]:
        """Waits for all of them."""
        return list(await asyncio.gather(*requests))

    async def end(self, *ids: str | None) -> None:
        """Waits until these responses have ended and counts how; cancels those that run on."""
        await asyncio.gather(*(self._end(one) for one in ids if one is not None))

    async def _end(self, response_id: str) -> None:
        path = f"/responses/{response_id}"
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, ConnectionError):
            async with asyncio.timeout(_PATIENCE):
                while True:
                    answer = await self.api.call("GET", path)
                    if answer.status == 200 and answer.body["status"] in TERMINAL:
                        break
                    await asyncio.sleep(0.25)
            error = answer.body["error"] or answer.body["incomplete_details"] or {}
            status = answer.body["status"]
            self.count(f"{status} {error.get('code') or error.get('reason') or ''}".strip())
            return
        self.count("cancelled by the client")
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, ConnectionError):
            await self.api.call("POST", f"{path}/cancel", b"")

    # --- bytes ---

    @asynccontextmanager
    async def connection(
        self, receive_buffer: int | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection from the offender's address."""
        raw = socket.socket()
        raw.setblocking(False)
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.bind((self.address, 0))
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=raw)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def send(self, *pieces: bytes, forever: bytes = b"", within: float = 15) -> None:
        """Sends the pieces on a new connection, then one piece for ever; counts the answer."""
        try:
            async with asyncio.timeout(within), self.connection() as (reader, writer):
                sending = asyncio.create_task(_send(writer, pieces, forever))
                try:
                    line = await reader.readline()
                finally:
                    sending.cancel()
                    await asyncio.wait({sending})
                self.count(line.split()[1].decode() if line else "closed")
        except TimeoutError:
            self.count("no answer")
        except OSError:
            self.count("closed")

    def head(self, method: str, path: str, **fields: object) -> bytes:
        """A request's head with the offender's key."""
        more = "".join(f"{name.replace('_', '-')}: {fields[name]}\r\n" for name in fields)
        return (
            f"{method} /v1{path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.key}\r\n"
            f"content-type: application/json\r\n{more}\r\n"
        ).encode()


async def _send(writer: asyncio.StreamWriter, pieces: Iterable[bytes], forever: bytes) -> None:
    with contextlib.suppress(OSError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        while forever:
            writer.write(forever)
            await writer.drain()


def as_json(value: object) -> bytes:
    """A value as the body of a request."""
    return json.dumps(value).encode()
