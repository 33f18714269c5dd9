"""A TCP proxy before one server: it makes the server fail in all the ways a network can.

    proxy = Proxy("127.0.0.1", 5432, new_parser=Statements)   # listens at once
    proxy.latency(1.0)          # each round trip takes a second longer
    proxy.refuse()              # new connections are refused, open ones closed
    proxy.hang()                # accepts connections and bytes, and forwards nothing
    proxy.cut()                 # closes the open connections; new ones are served
    proxy.lose()                # the open connections stay open and carry nothing; new ones work
    proxy.cut_after(1)          # the next request arrives; its reply is lost with the connection
    held = proxy.hold_answer(b"INSERT INTO journal")   # holds the reply to the first such statement
    await held.answered.wait()
    held.release()              # or held.lose(): the connection is closed instead
    proxy.drop_request(b"INSERT INTO journal")   # never forwards the first such statement
    proxy.redirect(5433)        # new connections go to another port of the host
    proxy.heal()

`ProcessProxies` are the three proxies of one process: its PostgreSQL, Redis and upstream can fail
while those of the other processes work.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from tests.support.chaos.interception import HeldAnswer, Interceptions, lost_answer
from tests.support.chaos.wire import RequestParser, Statements, verbatim

_READ_SIZE = 64 * 1024


@dataclass(slots=True, eq=False)
class ProxiedConnection:
    """One connection through the proxy, with both of its sides."""

    parse_requests: RequestParser
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    held: HeldAnswer | None = None
    """What happens to the next reply."""
    is_lost: bool = False
    """Bytes in either direction are dropped."""

    def abort(self) -> None:
        """Closes both sides at once; bytes that wait to be sent are lost."""
        for writer in (self.client, self.server):
            writer.transport.abort()

    def close(self) -> None:
        """Closes both sides after the bytes that wait to be sent."""
        for writer in (self.client, self.server):
            writer.close()


class _Listener:
    """A local port that stays reserved while nothing listens on it."""

    def __init__(self, accept: Callable[[socket.socket], None]) -> None:
        self._accept_connection = accept
        self._loop = asyncio.get_running_loop()
        self._reserved = _bound_socket(0)
        self.port: int = self._reserved.getsockname()[1]
        self._socket: socket.socket | None = None

    def start(self) -> None:
        if self._socket is None:
            self._socket = _bound_socket(self.port)
            self._socket.listen(512)
            self._loop.add_reader(self._socket, self._accept, self._socket)

    def stop(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Stops, and gives the port back."""
        self.stop()
        self._reserved.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # the client has disconnected already
            return
        connection.setblocking(False)
        self._accept_connection(connection)


class Proxy:
    """Listens on a port of its own as soon as it is created; needs a running event loop."""

    def __init__(
        self, host: str, port: int, new_parser: Callable[[], RequestParser] = verbatim
    ) -> None:
        """`host` and `port` of the server; `new_parser` makes a request parser per connection."""
        self._target = (host, port)
        self._new_parser = new_parser
        self._not_hung = asyncio.Event()
        self._not_hung.set()
        self._blocked = 0
        self._latency = 0.0
        self.interceptions = Interceptions()
        self._connections: set[ProxiedConnection] = set()
        self._cuts = 0
        """Cuts so far: a connection that was being opened at one of them is closed too."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = _Listener(self._start_serving)
        self.port = self._listener.port
        self._listener.start()

    @property
    def blocked(self) -> int:
        """The number of reads and new connections that wait because the proxy hangs."""
        return self._blocked

    def url(self, of: str) -> str:
        """The server's URL with the proxy's address in it."""
        parts = urlsplit(of)
        credentials, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{self.port}"))

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    # --- faults ---

    def latency(self, seconds: float) -> None:
        """Each round trip takes this much longer, half of it in each direction."""
        self._latency = seconds

    def refuse(self) -> None:
        """Acts as a killed server: open connections are closed, new ones refused."""
        self._listener.stop()
        self.cut()

    def hang(self) -> None:
        """Acts as a frozen machine: accepts connections and forwards nothing until `heal`."""
        self._not_hung.clear()

    def redirect(self, port: int) -> None:
        """Connects new connections to another port of the same host."""
        self._target = (self._target[0], port)

    def cut(self) -> None:
        """Closes all open connections, and those that are being opened."""
        self._cuts += 1
        for connection in list(self._connections):
            connection.abort()

    def lose(self) -> None:
        """Acts as a network that forgets the open connections: they stay open, and what is sent on
        them is dropped until they are closed. New ones are served."""
        for connection in self._connections:
            connection.is_lost = True

    def cut_after(self, size: int) -> None:
        """After `size` more bytes of clients, the sender of the last one loses its reply."""
        self.interceptions.bytes_to_cut = size

    def hold_answer(self, pattern: bytes) -> HeldAnswer:
        """Holds the reply to the first request that contains `pattern`."""
        held = HeldAnswer(pattern)
        self.interceptions.held.append(held)
        return held

    def count(self, pattern: bytes) -> None:
        """Counts the requests with `pattern` from now on, in `counts`."""
        self.interceptions.counts[pattern] = 0

    @property
    def counts(self) -> dict[bytes, int]:
        """The number of requests with each counted pattern."""
        return self.interceptions.counts

    def drop_request(self, pattern: bytes) -> None:
        """Never forwards the first request with `pattern`; its sender sees a lost connection."""
        self.interceptions.dropped_patterns.append(pattern)

    def heal(self) -> None:
        """Ends all faults. Replies that are held stay held until the test decides."""
        self._latency = 0.0
        self.interceptions.clear()
        self._not_hung.set()
        self._listener.start()

    async def close(self) -> None:
        """Closes everything."""
        self._listener.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- connections ---

    def _start_serving(self, connection: socket.socket) -> None:
        task = asyncio.create_task(self._serve(connection, self._cuts))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client_socket: socket.socket, cuts: int) -> None:
        from_client, client = await asyncio.open_connection(sock=client_socket)
        try:
            await self._wait_while_hung()
            from_server, server = await asyncio.open_connection(*self._target, limit=_READ_SIZE)
        except OSError:  # the server is down, so this connection fails too
            client.transport.abort()
            return
        except BaseException:
            client.close()
            raise
        # A small receive buffer: the server notices soon that the proxy hangs.
        server.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _READ_SIZE)
        connection = ProxiedConnection(self._new_parser(), client, server)
        if cuts != self._cuts:
            connection.abort()
            return
        self._connections.add(connection)
        directions = {
            asyncio.create_task(self._forward_requests(connection, from_client)),
            asyncio.create_task(self._forward_answers(connection, from_server)),
        }
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connections.discard(connection)
            connection.close()
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _forward_requests(
        self, connection: ProxiedConnection, reader: asyncio.StreamReader
    ) -> None:
        """Forwards from the client to the server."""
        while data := await self._read(reader):
            if connection.is_lost:
                continue
            for request in connection.parse_requests(data):
                self.interceptions.count(request)
                if self.interceptions.drops(request):
                    connection.abort()
                    return
                connection.held = self.interceptions.held_answer(request) or connection.held
            if self.interceptions.cuts_after(len(data)):
                connection.held = lost_answer()
            connection.server.write(data)
            await connection.server.drain()

    async def _forward_answers(
        self, connection: ProxiedConnection, reader: asyncio.StreamReader
    ) -> None:
        """Forwards from the server to the client."""
        while data := await self._read(reader):
            if connection.is_lost:
                continue
            held, connection.held = connection.held, None
            if held is not None and not await held.wait_decision():
                connection.abort()
                return
            connection.client.write(data)
            await connection.client.drain()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """Returns the next bytes when they may be forwarded; empty at the end of the connection."""
        try:
            data = await reader.read(_READ_SIZE)
        except ConnectionError:
            return b""
        if self._latency:
            await asyncio.sleep(self._latency / 2)
        await self._wait_while_hung()
        return data

    async def _wait_while_hung(self) -> None:
        self._blocked += 1
        await self._not_hung.wait()
        self._blocked -= 1


def _bound_socket(port: int) -> socket.socket:
    """A socket on this port, or on a free one if it is 0. Several sockets of a test may share the
    port. With SO_REUSEADDR other processes could take it while nothing listens on it."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.setblocking(False)
    bound.bind(("127.0.0.1", port))
    return bound


@dataclass(frozen=True, slots=True)
class ProcessProxies:
    """The proxies between one process and its servers."""

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
        """Closes all three."""
        for proxy in (self.postgres, self.redis, self.upstream):
            await proxy.close()


def _proxy_before(url: str, new_parser: Callable[[], RequestParser] = verbatim) -> Proxy:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return Proxy(parts.hostname, parts.port, new_parser)
