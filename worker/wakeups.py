"""Reads the messages that wake this worker, in the pool's event loop (ADR 0027)."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import cast

import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from models.config.settings import Settings
from models.redis.client import (
    REDIS_ERRORS,
    REDIS_TIMEOUT,
    close_connection,
    open_connection,
    redis_client,
)

logger = structlog.get_logger()

_POP_SECONDS = 1
"""Redis replies to BRPOP after this time if there is no message."""
_LATE = 3.0
"""Seconds after which a reply is late and the connection is taken as lost."""
_RECONNECT_DELAY = 0.5
"""Seconds."""


class WakeUps:
    """Takes messages from the queues of this worker, each only while the worker has a free slot for
    it. Each queue has a connection of its own: one that is full does not hold up the other."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        queues: Sequence[str],
        free_slots: Callable[[str], int],
        deliver: Callable[[str, bytes], None],
    ) -> None:
        """`name`: of the connections in Redis. `free_slots` returns how many responses of a queue
        this worker can start; `deliver` gets a queue and a message of it, and does not raise."""
        self._redis = redis_client(settings, name, timeout=None)
        self._readers = [_QueueReader(self._redis, queue, free_slots, deliver) for queue in queues]

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
        free_slots: Callable[[str], int],
        deliver: Callable[[str, bytes], None],
    ) -> None:
        self._redis = redis
        self._queue = queue
        self._free_slots = free_slots
        self._deliver = deliver
        self._client_id: int | None = None
        self._stopped = asyncio.Event()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Reads until `stop`, and connects again after an error."""
        while not self._stopped.is_set():
            try:
                await self._read()
            except REDIS_ERRORS as error:
                logger.warning("queue_unavailable", queue=self._queue, error=repr(error))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RECONNECT_DELAY):
                        await self._stopped.wait()

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

    async def _read(self) -> None:
        connection = await self._connect()
        pop = connection.pack_command("BRPOP", self._queue, _POP_SECONDS)
        try:
            while await self._has_slot():
                async with asyncio.timeout(_LATE):
                    await connection.send_packed_command(pop, check_health=False)
                    reply = await connection.read_response()
                if reply is not None:
                    self._deliver(self._queue, cast("list[bytes]", reply)[1])
        finally:
            self._client_id = None
            await close_connection(connection)

    async def _connect(self) -> AbstractConnection:
        async with asyncio.timeout(REDIS_TIMEOUT):
            connection = await open_connection(self._redis)
            try:
                await connection.send_command("CLIENT", "ID")
                self._client_id = cast("int", await connection.read_response())
            except BaseException:
                await close_connection(connection)
                raise
        return connection

    async def _has_slot(self) -> bool:
        """Waits until this worker has a free slot. False after `stop`."""
        while not self._stopped.is_set():
            if self._free_slots(self._queue) > 0:
                return True
            self._wake.clear()
            await self._wake.wait()
        return False
