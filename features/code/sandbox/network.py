"""The network of a session: all connections of its code, which end with it."""

import asyncio
import os
import socket
from collections.abc import Coroutine

import structlog

from features.code.sandbox.proxy import ADDRESS, BUFFER, CodeConnection, Destinations, HostTraffic
from features.code.sandbox.sockets import give_sockets

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
