"""Reads the messages that wake this worker, in the pool's event loop (docs/architecture.md)."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis.asyncio import Redis

from models.config.settings import Settings
from models.redis.client import REDIS_ERRORS, REDIS_TIMEOUT, redis_client
from models.redis.raw_connection import RawConnection, pack, stay_connected
from models.tasks import IdleTimeout

_POP_SECONDS = 1
"""Redis replies to BRPOP after this time if there is no message."""
_LATE = 3.0
"""Seconds after which a reply is late and the connection is taken as lost."""
_MAX_MORE = 63
"""Messages that are read at once while responses wait in line: the newest ones, whose responses no
other worker may know of yet."""


class FreeSlots(Protocol):
    """The slots of this worker (worker/intake/intake.py)."""

    def free_for(self, queue: str) -> int:
        """How many responses of this queue can be started."""
        ...

    def is_crowded(self, queue: str) -> bool:
        """Whether responses of this queue may be waiting in line."""
        ...


class WakeUps:
    """Takes messages from the queues of this worker, each only while the worker has a free slot for
    it. Each queue has a connection of its own: one that is full does not hold up the other."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        queues: Sequence[str],
        slots: FreeSlots,
        deliver: Callable[[str, bytes], None],
    ) -> None:
        """`name`: of the connections in Redis. `deliver` gets a queue and a message of it, and does
        not raise."""
        self._redis = redis_client(settings, name, timeout=None)
        self._readers = [_QueueReader(self._redis, queue, slots, deliver) for queue in queues]

    async def run(self) -> None:
        """Reads until `stop`."""
        async with asyncio.TaskGroup() as readers:
            for reader in self._readers:
                readers.create_task(reader.run())
        with contextlib.suppress(*REDIS_ERRORS):
            await self._redis.aclose()

    def on_capacity_changed(self) -> None:
        """The number of free slots may have changed."""
        for reader in self._readers:
            reader.wake()

    async def stop(self) -> None:
        """Takes no further message; `run` then returns within a second, unless Redis hangs. Takes
        at most a second itself."""
        await asyncio.gather(*(reader.stop() for reader in self._readers))


class _QueueReader:
    """Reads one queue."""

    def __init__(
        self,
        redis: Redis,
        queue: str,
        slots: FreeSlots,
        deliver: Callable[[str, bytes], None],
    ) -> None:
        self._redis = redis
        self._queue = queue
        self._slots = slots
        self._deliver = deliver
        self._client_id: int | None = None
        self._stopped = asyncio.Event()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Reads until `stop`, and connects again after an error."""
        await stay_connected(
            self._redis, self._read, "queue_unavailable", ended=self._stopped, queue=self._queue
        )

    def wake(self) -> None:
        """Looks at the free slots again."""
        self._wake.set()

    async def stop(self) -> None:
        """Ends `run`, and the BRPOP that waits. A message that Redis has sent already is delivered:
        a closed connection would lose it."""
        self._stopped.set()
        self._wake.set()
        if self._client_id is not None:
            with contextlib.suppress(*REDIS_ERRORS):
                async with asyncio.timeout(REDIS_TIMEOUT):
                    await self._redis.client_unblock(self._client_id)

    async def _read(self, connection: RawConnection) -> None:
        """Reads until `stop`. Raises what REDIS_ERRORS names, TimeoutError if a reply is late."""
        queue = self._queue.encode()
        pop = pack(b"BRPOP", queue, b"%d" % _POP_SECONDS)
        pop_more = pack(b"LPOP", queue, b"%d" % _MAX_MORE)
        async with asyncio.timeout(REDIS_TIMEOUT):
            connection.write([pack(b"CLIENT", b"ID")])
            [self._client_id] = await connection.read()
        loop, reply_timeout = asyncio.get_running_loop(), IdleTimeout()
        try:
            with reply_timeout.extend():
                while await self._has_slot():
                    reply_timeout.set_deadline(loop.time() + _LATE)
                    commands = [pop, pop_more] if self._slots.is_crowded(self._queue) else [pop]
                    connection.write(commands)
                    for message in await _read_messages(connection, len(commands)):
                        self._deliver(self._queue, message)
                    reply_timeout.pause()
        finally:
            self._client_id = None

    async def _has_slot(self) -> bool:
        """Waits until this worker has a free slot. False after `stop`."""
        while not self._stopped.is_set():
            if self._slots.free_for(self._queue) > 0:
                return True
            self._wake.clear()
            await self._wake.wait()
        return False


async def _read_messages(connection: RawConnection, commands: int) -> list[bytes]:
    """The messages that BRPOP, and then LPOP, have taken. Raises what REDIS_ERRORS names."""
    replies: list[Any] = []
    while len(replies) < commands:
        replies += await connection.read()
    first, *more = replies
    messages = [] if first is None else [first[1]]
    return messages + [message for reply in more if reply is not None for message in reply]
