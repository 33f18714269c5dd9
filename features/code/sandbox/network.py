"""The network of a session: all connections of its code, which end with it.

Sockets for code that may reach hosts: the kernel hands each call of `socket` to the sandbox, by
seccomp's user notification (seccomp_unotify(2)), and the sandbox answers with a socket of its own.

It is one end of a pair of UNIX sockets, whatever the code wanted; the sandbox has the other
one, and speaks HTTP as a proxy (proxy.py). So no address that code names is used by the kernel,
nothing of its memory is read, and it gets no kind of socket that it could not make without network.
"""

import asyncio
import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

import structlog

from features.code.sandbox.proxy import ADDRESS, BUFFER, CodeConnection, Destinations, HostTraffic

_RECEIVE, _SEND, _ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40182103
"""ioctls, with the sizes of their structures."""
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
"""Its id, process, flags, and the call: number, machine, address and arguments."""
_ANSWER = struct.Struct("=QqiI")
_DESCRIPTOR = struct.Struct("=QIIII")
_AND_ANSWER = 2
_PAUSE = 0.005
"""Seconds between two sockets of a process: a flood of calls costs the sandbox little."""

MakePeer = Callable[[], Awaitable[socket.socket | None]]
"""Returns the code's end of a new pair; None: it has as many as it may have."""


class Handover:
    """The way on which a process that starts gives its listener to the sandbox."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self.theirs = theirs.detach()
        """A descriptor for the process, to be closed here."""

    def taken(self) -> int:
        """The listener, once the process is ready. Raises OSError."""
        self._ours.setblocking(False)
        _, listeners, _, _ = socket.recv_fds(self._ours, 1, 1)
        if not listeners:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return listeners[0]

    def close(self) -> None:
        """Closes this side."""
        self._ours.close()


async def give_sockets(listener: int, make_peer: MakePeer) -> None:
    """Answers the calls of a process and of all that it starts, until they have ended."""
    while await _is_called(listener):
        await _answer(listener, make_peer)
        await asyncio.sleep(_PAUSE)


async def _is_called(listener: int) -> bool:
    """Waits for a call; False: no process is left. Before Linux 6.11 taking a call from a listener
    without processes never returns, so what `poll` says decides."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        await _is_ready(listener)
        for _, events in poll.poll(0):
            return bool(events & select.POLLIN)
        # A signal has interrupted the call.


async def _is_ready(listener: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listener, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listener)


async def _answer(listener: int, make_peer: MakePeer) -> None:
    buffer = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer)
    except FileNotFoundError:
        return  # the process was killed, or a signal has interrupted its call
    call, _, _, _, _, _, _, kind, *_ = _NOTIFICATION.unpack(buffer)
    peer = await make_peer()
    if peer is None:
        _refuse(listener, call, errno.EMFILE)
        return
    with peer:
        peer.setblocking(not kind & socket.SOCK_NONBLOCK)
        close_on_exec = os.O_CLOEXEC if kind & socket.SOCK_CLOEXEC else 0
        given = _DESCRIPTOR.pack(call, _AND_ANSWER, peer.fileno(), 0, close_on_exec)
        # It returns when the process has run, which may take its time.
        work = asyncio.get_running_loop().run_in_executor(
            None, fcntl.ioctl, listener, _ADD_DESCRIPTOR, given
        )
        try:
            await asyncio.shield(work)
        except FileNotFoundError:
            pass
        except OSError as error:  # it has as many open files as it may have
            _refuse(listener, call, error.errno or errno.EMFILE)
        finally:
            # Both descriptors stay open as long as the kernel may read their numbers.
            with suppress(OSError):
                await work


def _refuse(listener: int, call: int, error: int) -> None:
    with suppress(FileNotFoundError):
        fcntl.ioctl(listener, _SEND, _ANSWER.pack(call, 0, -error, 0))


logger = structlog.get_logger()

_CONNECTIONS = 16
"""Open at the same time."""
_PATIENCE = 1.0
"""Seconds that one more waits for another to end, before it is refused."""
READABLE = (
    *("/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted"),
    "/etc/debian_version",
)
"""Certificates of public authorities, by which code checks its hosts itself, and what pip needs."""
ENVIRONMENT = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), ADDRESS)
"""Libraries and programs connect to hosts as it says."""


class SessionNetwork:
    """What the code of one session may reach."""

    def __init__(self, destinations: Destinations) -> None:
        self.traffic = HostTraffic()
        self._destinations = destinations
        self._room = asyncio.Semaphore(_CONNECTIONS)
        self._connections: set[asyncio.Task[None]] = set()
        self._listeners: set[asyncio.Task[None]] = set()

    def add(self, listener: int) -> None:
        """Gives sockets to a process of the session. `listener`: is closed when it has ended, or
        the session; from then on calls fail."""
        task = _keep(self._listeners, self._answer_calls(listener))
        task.add_done_callback(lambda _: os.close(listener))

    def close(self) -> None:
        """Ends all connections."""
        for task in (*self._listeners, *self._connections):
            task.cancel()

    async def _answer_calls(self, listener: int) -> None:
        try:
            await give_sockets(listener, self._peer)
        except OSError as error:
            logger.warning("no_sockets_for_code", error=str(error))

    async def _peer(self) -> socket.socket | None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._room.acquire()
        except TimeoutError:
            return None
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            logger.warning("no_sockets_for_code", error=str(error))
            self._room.release()
            return None
        task = _keep(self._connections, self._serve(ours))
        task.add_done_callback(lambda _: self._room.release())
        return theirs

    async def _serve(self, ours: socket.socket) -> None:
        code = await asyncio.open_connection(sock=ours, limit=BUFFER)
        await CodeConnection(code, self._destinations, self.traffic).serve()


def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
