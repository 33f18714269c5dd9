"""A TCP proxy before one server, which takes that server away in all the ways a network can, and gives it back.

    proxy = Proxy("127.0.0.1", 5432, dialect=Statements)   # listens at once
    proxy.latency(1.0)          # each round trip takes a second longer
    proxy.refuse()              # nobody listens any more, and who was connected is cut off
    proxy.hang()                # connects, takes everything, and passes nothing on in either direction
    proxy.cut()                 # ends the present connections; new ones are served
    proxy.cut_after(1)          # the next thing a client says arrives; instead of its answer comes the end of the connection
    snare = proxy.hold(b"INSERT INTO journal")   # the answer to the first such statement waits here, done but unheard
    await snare.caught.wait()
    snare.release()             # or snare.lose(): the connection ends instead
    proxy.swallow(b"INSERT INTO journal")        # the first such statement is never passed on, and its connection ends
    proxy.heal()

`Wires` are the three proxies of one process: its own Postgres, Redis and upstream can fail while everybody else's work.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from cli.embedded.process import free_port

RequestParser = Callable[[bytes], list[bytes]]
"""What a client's bytes ask for, piece by piece: bytes in, the requests that they begin out."""
_PIECE = 64 * 1024
_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


def verbatim() -> RequestParser:
    """Every piece as it came: for Redis and HTTP, whose requests name themselves."""
    return lambda data: [data]


class Statements:
    """PostgreSQL's wire from the client's side: the SQL of each statement that is executed, prepared ones included."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._greeted = False
        self._prepared: dict[bytes, bytes] = {}

    def __call__(self, data: bytes) -> list[bytes]:
        """More of the client's bytes; the SQL of the statements begun in them."""
        self._received += data
        said: list[bytes] = []
        while (message := self._next()) is not None:
            kind, body = message
            if kind == b"Q":
                said.append(body.rstrip(b"\0"))
            elif kind == b"P":
                name, sql, _ = body.split(b"\0", 2)
                self._prepared[name] = sql
            elif kind == b"B":
                _portal, name, _ = body.split(b"\0", 2)
                said.append(self._prepared[name])
        return said

    def _next(self) -> tuple[bytes, bytes] | None:
        """One whole message: kind and body; the greeting has no kind."""
        head = 1 if self._greeted else 0
        if len(self._received) < head + 4:
            return None
        size = int.from_bytes(self._received[head : head + 4], "big")
        if len(self._received) < head + size:
            return None
        kind, body = bytes(self._received[:head]), bytes(self._received[head + 4 : head + size])
        del self._received[: head + size]
        if not self._greeted:
            self._greeted = int.from_bytes(body[:4], "big") not in (_SSL_REQUEST, _GSS_REQUEST)
        return kind, body


@dataclass(slots=True, eq=False)
class HeldAnswer:
    """Waits for one request, and keeps its answer."""

    pattern: bytes
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has answered: what was asked is done, and the client does not know it."""
    _decided: asyncio.Event = field(default_factory=asyncio.Event)
    _is_lost: bool = False

    def release(self) -> None:
        """Let the answer go on its way."""
        self._decided.set()

    def lose(self) -> None:
        """Instead of its answer the client gets the end of the connection."""
        self._is_lost = True
        self._decided.set()

    async def wait_decision(self) -> bool:
        """An answer has come; returns whether it may go on, once that is decided."""
        self.answered.set()
        await self._decided.wait()
        return not self._is_lost


@dataclass(slots=True, eq=False)
class _ProxiedConnection:
    """One connection through the proxy, as far as it has come."""

    parse_requests: RequestParser
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    held: HeldAnswer | None = None

    def abort(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()

    def close(self) -> None:
        for writer in (self.client, self.server):
            writer.close()


class Proxy:
    """Listens on a port of its own from the moment it is made; needs a running event loop."""

    def __init__(
        self, host: str, port: int, new_parser: Callable[[], RequestParser] = verbatim
    ) -> None:
        """`host` and `port` of the server behind; `dialect`: how its clients' requests are read, for `hold`."""
        self._target = (host, port)
        self._new_parser = new_parser
        self._loop = asyncio.get_running_loop()
        self.port = free_port()
        self._guard = _bound_socket(self.port)
        """Keeps the port ours while nobody listens on it."""
        self._listener: socket.socket | None = None
        self._not_hung = asyncio.Event()
        self._not_hung.set()
        self._blocked = 0
        self._latency = 0.0
        self._bytes_to_cut: int | None = None
        self._held: list[HeldAnswer] = []
        self._dropped_patterns: list[bytes] = []
        self._connections: set[_ProxiedConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listen()

    @property
    def blocked(self) -> int:
        """Pieces that a hang keeps from going on, and connections that it keeps from being made."""
        return self._blocked

    def url(self, of: str) -> str:
        """The server's URL, with our address in it."""
        parts = urlsplit(of)
        credentials, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{self.port}"))

    @property
    def connections(self) -> int:
        """How many are being served now."""
        return len(self._connections)

    # --- faults ---

    def latency(self, seconds: float) -> None:
        """A round trip takes this much longer: half of it each way."""
        self._latency = seconds

    def refuse(self) -> None:
        """As a server that was killed: connections end, and new ones are refused."""
        self._stop_listening()
        self.cut()

    def hang(self) -> None:
        """As a machine that stalled: connections are accepted and kept, and nothing goes through. What is sent arrives at `heal`."""
        self._not_hung.clear()

    def cut(self) -> None:
        """Ends all present connections."""
        for line in list(self._connections):
            line.abort()

    def cut_after(self, size: int) -> None:
        """Once clients have said `size` more bytes, the one that said the last of them loses its connection instead of the answer."""
        self._bytes_to_cut = size

    def hold_answer(self, pattern: bytes) -> HeldAnswer:
        """Keeps the answer to the first request that contains `words`."""
        snare = HeldAnswer(pattern)
        self._held.append(snare)
        return snare

    def drop_request(self, pattern: bytes) -> None:
        """Keeps the first request that contains `words` from the server; who made it sees the connection end, as if its answer were lost."""
        self._dropped_patterns.append(pattern)

    def heal(self) -> None:
        """All is well again. Answers held in a snare stay there until that decides."""
        self._latency = 0.0
        self._bytes_to_cut = None
        self._held.clear()
        self._dropped_patterns.clear()
        self._not_hung.set()
        self._listen()

    async def close(self) -> None:
        """End everything."""
        self._stop_listening()
        self._guard.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- the wire ---

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = _bound_socket(self.port)
            self._listener.listen(512)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # it was here, and left
            return
        connection.setblocking(False)
        task = asyncio.create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        asking, client = await asyncio.open_connection(sock=connection)
        try:
            await self._wait_while_hung()
            answering, server = await asyncio.open_connection(*self._target, limit=_PIECE)
        except OSError:  # the server behind is away: so is this connection
            client.transport.abort()
            return
        except BaseException:
            client.close()
            raise
        # A small buffer on our side: a hang is soon felt by the server behind.
        server.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE)
        line = _ProxiedConnection(self._new_parser(), client, server)
        self._connections.add(line)
        directions = {
            asyncio.create_task(self._forward_requests(line, asking)),
            asyncio.create_task(self._forward_answers(line, answering)),
        }
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connections.discard(line)
            line.close()
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _forward_requests(
        self, connection: _ProxiedConnection, reader: asyncio.StreamReader
    ) -> None:
        """From the client to the server."""
        while data := await self._read_piece(reader):
            for request in connection.parse_requests(data):
                if self._drops(request):
                    connection.abort()
                    return
                self._set_held(connection, request)
            self._count_to_cut(connection, len(data))
            connection.server.write(data)
            await connection.server.drain()

    async def _forward_answers(
        self, connection: _ProxiedConnection, reader: asyncio.StreamReader
    ) -> None:
        """From the server to the client."""
        while data := await self._read_piece(reader):
            snare, connection.held = connection.held, None
            if snare is not None and not await snare.wait_decision():
                connection.abort()
                return
            connection.client.write(data)
            await connection.client.drain()

    async def _read_piece(self, reader: asyncio.StreamReader) -> bytes:
        """What comes next, once it may pass; empty at the end of the connection."""
        try:
            data = await reader.read(_PIECE)
        except ConnectionError:
            return b""
        if self._latency:
            await asyncio.sleep(self._latency / 2)
        await self._wait_while_hung()
        return data

    def _drops(self, request: bytes) -> bool:
        words = next((words for words in self._dropped_patterns if words in request), None)
        if words is not None:
            self._dropped_patterns.remove(words)
        return words is not None

    async def _wait_while_hung(self) -> None:
        self._blocked += 1
        await self._not_hung.wait()
        self._blocked -= 1

    def _set_held(self, connection: _ProxiedConnection, request: bytes) -> None:
        for snare in self._held:
            if snare.pattern in request:
                self._held.remove(snare)
                connection.held = snare
                return

    def _count_to_cut(self, connection: _ProxiedConnection, size: int) -> None:
        if self._bytes_to_cut is None:
            return
        self._bytes_to_cut -= size
        if self._bytes_to_cut <= 0:
            self._bytes_to_cut = None
            connection.held = HeldAnswer(b"")
            connection.held.lose()


def _bound_socket(port: int) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setblocking(False)
    found.bind(("127.0.0.1", port))
    return found


@dataclass(frozen=True, slots=True)
class ProcessProxies:
    """One process's ways to the servers."""

    postgres: Proxy
    redis: Proxy
    upstream: Proxy

    @classmethod
    def before(cls, postgres: str, redis: str, upstream: str) -> Self:
        """A proxy before each of these URLs."""
        return cls(
            _proxy_before(postgres, Statements), _proxy_before(redis), _proxy_before(upstream)
        )

    async def close(self) -> None:
        """End all three."""
        for proxy in (self.postgres, self.redis, self.upstream):
            await proxy.close()


def _proxy_before(url: str, new_parser: Callable[[], RequestParser] = verbatim) -> Proxy:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return Proxy(parts.hostname, parts.port, new_parser)
