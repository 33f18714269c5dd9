"""An HTTP proxy for one connection of code: `CONNECT host:port`, or a request with a whole URL. It
lets those hosts pass that are on the list, and addresses that the guard allows."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from models.hosts import AllowedHosts

ADDRESS = "http://127.0.0.1:3128"
"""For the code's environment. Nothing listens there: whatever it connects to is the proxy."""
_HEAD_TIME, _CONNECT_TIME, _IDLE_TIME = 10.0, 10.0, 60.0
"""Seconds for a request's head, for a connection to its host, and without a byte in it."""
BUFFER = 32 * 1024
"""Bytes of a request's head, and of what is read at a time."""
_REQUEST = re.compile(rb"([A-Z]+) ([\x21-\x7e]+) HTTP/1\.[01]")
_HOP = re.compile(rb"(?:connection|host|keep-alive|proxy-[a-z-]+|upgrade)[ \t]*:", re.IGNORECASE)
_NOTED_HOSTS = 50
_REASONS = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}


class Refused(Exception):
    """Code may not connect there. The message is for the model."""


class Target(Protocol):
    """Where a URL leads. `url`: its normal form; `host`: a name in lower case, or an address."""

    @property
    def url(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class Guard(Protocol):
    """Which addresses may be connected to."""

    def check(self, url: str) -> Target:
        """Reads a URL. Raises Refused."""
        ...

    async def addresses(self, target: Target) -> Sequence[str]:
        """All addresses of the target, each allowed. Raises Refused, also if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Destinations:
    """What code may reach."""

    hosts: AllowedHosts
    guard: Guard


@dataclass
class HostTraffic:
    """What the code of a session has sent to hosts and received from them, in bytes."""

    sent: int = 0
    received: int = 0
    hosts: set[str] = field(default_factory=set)
    """The first of the hosts, with their ports."""


class _RequestFailed(Exception):
    """`status` of the answer; the message is for the model."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class _PassedRequest:
    target: Target
    head: bytes
    """What the host gets first."""
    answer: bytes
    """What the code gets first."""


class CodeConnection:
    """One connection of code. `traffic`: is counted up."""

    def __init__(
        self,
        code: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        destinations: Destinations,
        traffic: HostTraffic,
    ) -> None:
        self._reader, self._writer = code
        self._destinations = destinations
        self._traffic = traffic

    async def serve(self) -> None:
        """Serves its only request, until either side closes, or nothing passes for a minute."""
        try:
            head = await self._head()
            try:
                request = self._request(head)
                host = await self._connected(request.target)
            except _RequestFailed as failure:
                await self._refuse(failure)
                return
            await self._relay(request, *host)
        except (OSError, EOFError):
            return  # one side has ended, or did not go on in time; the other side sees it
        finally:
            await _end(self._writer)

    async def _head(self) -> bytes:
        """Raises EOFError and TimeoutError."""
        async with asyncio.timeout(_HEAD_TIME):
            begin = await self._reader.readexactly(1)
            if not begin.isalpha():  # TLS, for instance, without CONNECT
                return begin
            try:
                return begin + await self._reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                return begin

    def _request(self, head: bytes) -> _PassedRequest:
        """Raises _RequestFailed."""
        line, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        found = _REQUEST.fullmatch(line)
        if found is None:
            raise _RequestFailed(400, f"the network of this sandbox is an HTTP proxy, {ADDRESS}")
        method, url = found[1], found[2].decode()
        is_tunnel = method == b"CONNECT"
        try:
            target = self._destinations.guard.check(f"https://{url}/" if is_tunnel else url)
        except Refused as refusal:
            raise _RequestFailed(403, str(refusal)) from None
        if not self._destinations.hosts.allows(target.host, target.port):
            raise _RequestFailed(403, f"{_shown(target)} is not in the allow-list of this sandbox")
        if is_tunnel:
            return _PassedRequest(target, b"", b"HTTP/1.1 200 Connection established\r\n\r\n")
        scheme, _, rest = target.url.partition("://")
        if scheme != "http":
            raise _RequestFailed(400, "use CONNECT for a URL that begins with https")
        place, _, path = rest.partition("/")
        kept = [each for each in fields if not _HOP.match(each)]
        lines = [
            *(method + b" /" + path.encode() + b" HTTP/1.1", b"Host: " + place.encode()),
            *(*kept, b"Connection: close", b"", b""),
        ]
        return _PassedRequest(target, b"\r\n".join(lines), b"")

    async def _connected(self, target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the first address that takes one. Raises _RequestFailed."""
        try:
            async with asyncio.timeout(_CONNECT_TIME):
                for address in await self._destinations.guard.addresses(target):
                    try:
                        return await asyncio.open_connection(address, target.port, limit=BUFFER)
                    except OSError:
                        continue
        except Refused as refusal:
            raise _RequestFailed(403, f"{_shown(target)} {refusal}") from None
        except TimeoutError:
            pass
        raise _RequestFailed(502, f"{_shown(target)} does not take a connection")

    async def _refuse(self, failure: _RequestFailed) -> None:
        """Libraries show the first line only, programs the text only."""
        text = f"{failure}\n".encode()
        head = (
            f"HTTP/1.1 {failure.status} {_REASONS[failure.status]}: {failure}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        )
        self._writer.write(head.encode() + text)
        async with asyncio.timeout(_HEAD_TIME):
            await self._writer.drain()

    async def _relay(
        self, request: _PassedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until both sides have ended, or nothing passes for a minute."""
        writer.write(request.head)
        self._writer.write(request.answer)
        self._traffic.sent += len(request.head)
        if len(self._traffic.hosts) < _NOTED_HOSTS:
            self._traffic.hosts.add(_shown(request.target))
        try:
            async with asyncio.timeout(_IDLE_TIME) as idle, asyncio.TaskGroup() as both:
                both.create_task(self._copy(self._reader, writer, idle, is_sent=True))
                both.create_task(self._copy(reader, self._writer, idle, is_sent=False))
        except* OSError:
            pass
        finally:
            await _end(writer)

    async def _copy(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        idle: asyncio.Timeout,
        *,
        is_sent: bool,
    ) -> None:
        """Raises OSError."""
        while chunk := await source.read(BUFFER):
            if not idle.expired():
                idle.reschedule(asyncio.get_running_loop().time() + _IDLE_TIME)
            self._traffic.sent += is_sent * len(chunk)
            self._traffic.received += (not is_sent) * len(chunk)
            sink.write(chunk)
            await sink.drain()
        sink.write_eof()


async def _end(writer: asyncio.StreamWriter) -> None:
    """Closes a connection: what it has not taken some seconds later is lost."""
    writer.close()
    try:
        async with asyncio.timeout(_HEAD_TIME):
            await writer.wait_closed()
    except OSError:
        pass
    finally:
        writer.transport.abort()


def _shown(target: Target) -> str:
    return f"{target.host}:{target.port}"
