"""The live bus: one Redis pub/sub connection of a web process, whose messages go to all readers.

The bus is only for speed. What it loses, a reader finds in the log. While it is disconnected, the
process polls the journals of the workers whose responses are read.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from uuid import UUID

import structlog
from redis.asyncio.client import PubSub

from models.config.settings import Settings
from models.db.arrays import Ints, Uuids
from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch
from models.db.queries.common import LogBlock
from models.db.queries.read import (
    JOURNAL_BATCHES,
    LAST_BATCH,
    MOVED_LOGS,
    OWNERS,
    JournalBatch,
)
from models.deadlines import IdleTimeout
from models.redis.channels import events, web_process
from models.redis.client import REDIS_ERRORS, connect_redis

logger = structlog.get_logger()

_PING_INTERVAL = 1.0
"""Seconds between two pings on the bus, which ends after 2.5 times that without a message."""
_SUBSCRIBE_TIMEOUT = 1.0
_POLL_INTERVAL = 0.25
"""Seconds between two polls of the journals while the bus is disconnected."""
_POLLS_PER_LOOK = 4
"""So many polls of the journals are between two looks at the logs of all readers."""
_MAX_POSITIONS = 1000
"""Readers for which one statement looks whether their logs have moved."""
_LAST_NUMBER = 2**31 - 1
_FAST_POLL_AFTER = 2.0
"""Seconds without a message after which a reader that had just received one reads the log: its
worker may have lost Redis (I8)."""


@dataclass(slots=True, eq=False)
class Inbox:
    """Blocks for one reader.

    A block that does not fit is dropped; the reader then reads it from the log.
    """

    limit: int
    """bytes of all blocks"""
    blocks: deque[LogBlock] = field(default_factory=deque)
    size: int = 0
    must_read_log: bool = False
    """The reader should read the log: an ending, a dropped block, a reconnected bus."""
    idle_seconds: float = 0.0
    """Seconds since the last block or notification."""
    poll_fast: bool = False
    """Events have just arrived, so a pause may mean that messages are lost."""
    number: int = _LAST_NUMBER
    """of the last event that the reader has sent, when it last began to wait; by default, for a
    reader that waits only for the end, more than there can be"""
    attempt: int = 0
    """of that event; 0: none was sent"""
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, block: LogBlock) -> None:
        """Adds a block if there is room for it, else makes the reader read the log."""
        if self.size + len(block.frames) > self.limit:
            self.wake()
            return
        self.blocks.append(block)
        self.size += len(block.frames)
        self.idle_seconds = 0.0
        self.poll_fast = True
        self._ready.set()

    def wake(self) -> None:
        """Makes the reader read the log."""
        self.must_read_log = True
        self.idle_seconds = 0.0
        self._ready.set()

    async def next(self) -> LogBlock | None:
        """Waits for the next block; None if the reader should read the log."""
        if not self.blocks and not self.must_read_log:
            self._ready.clear()
            await self._ready.wait()
        if not self.blocks:
            self.must_read_log = False
            return None
        block = self.blocks.popleft()
        self.size -= len(block.frames)
        return block


class Bus:
    """The subscriptions of one web process."""

    def __init__(self, settings: Settings, pool: Pool, lease_id: UUID) -> None:
        self._settings = settings
        self._pool = pool
        self._lease_id = lease_id
        self._inboxes: dict[str, set[Inbox]] = {}
        self._response_ids: dict[str, UUID] = {}
        self._subscription_acks: dict[str, asyncio.Event] = {}
        self._pubsub: PubSub | None = None
        """Set while the bus is connected."""

    @property
    def healthy(self) -> bool:
        """Redis answers on the bus."""
        return self._pubsub is not None

    @property
    def readers(self) -> int:
        """Number of inboxes: streams, and requests that wait for the end of a response."""
        return sum(map(len, self._inboxes.values()))

    @asynccontextmanager
    async def subscribe(self, response_id: UUID) -> AsyncIterator[Inbox]:
        """An inbox for one reader, after Redis has confirmed the subscription or has failed to."""
        name = events(response_id)
        inbox = Inbox(self._settings.web.reader_buffer)
        readers = self._inboxes.setdefault(name, set())
        readers.add(inbox)
        self._response_ids[name] = response_id
        try:
            await self._subscribe_channel(name)
            yield inbox
        finally:
            readers.discard(inbox)
            if not readers and self._inboxes.get(name) is readers:
                await self._unsubscribe_channel(name)

    def wake_all(self) -> None:
        """Makes every reader read the log."""
        for inbox in chain.from_iterable(self._inboxes.values()):
            inbox.wake()

    async def run(self) -> None:
        """Receives messages for ever; reconnects after errors."""
        while True:
            redis = connect_redis(self._settings, f"web-{self._lease_id.hex}", timeout=None)
            try:
                async with redis.pubsub() as pubsub:
                    await self._listen(pubsub)
            except REDIS_ERRORS as error:
                logger.warning("bus_disconnected", error=str(error))
            finally:
                self._pubsub = None
                await redis.aclose()
            await asyncio.sleep(_POLL_INTERVAL)

    async def _listen(self, pubsub: PubSub) -> None:
        async with asyncio.timeout(2 * _PING_INTERVAL):
            await pubsub.subscribe(web_process(self._lease_id))
        # New readers subscribe themselves from here on; existing readers are subscribed here.
        self._pubsub = pubsub
        if self._inboxes:
            await pubsub.subscribe(*self._inboxes)
        self.wake_all()
        pings = asyncio.create_task(self._keep_pinging(pubsub))
        loop = asyncio.get_running_loop()
        idle_timeout = IdleTimeout()
        try:
            with idle_timeout.extend():
                while True:
                    idle_timeout.set_deadline(loop.time() + 2.5 * _PING_INTERVAL)
                    self._deliver(await pubsub.parse_response(block=True))
        finally:
            pings.cancel()

    async def _keep_pinging(self, pubsub: PubSub) -> None:
        try:
            while True:
                await asyncio.sleep(_PING_INTERVAL)
                await pubsub.ping()
        except REDIS_ERRORS as error:
            # `_listen` sees that no message arrives.
            logger.info("bus_ping_failed", error=str(error))

    def _deliver(self, message: list[bytes]) -> None:
        kind = message[0]
        if kind == b"message":
            readers = self._inboxes.get(message[1].decode())
            if readers:
                _distribute(readers, message[2])
        elif (
            kind == b"subscribe"
            and (ack := self._subscription_acks.pop(message[1].decode(), None)) is not None
        ):
            ack.set()

    async def _subscribe_channel(self, name: str) -> None:
        pubsub = self._pubsub
        if pubsub is None:
            return
        ack = self._subscription_acks.setdefault(name, asyncio.Event())
        try:
            async with asyncio.timeout(_SUBSCRIBE_TIMEOUT):
                await pubsub.subscribe(name)
                await ack.wait()
        except REDIS_ERRORS as error:
            # The reader still gets its events: `poll_idle_readers` makes it read the log.
            logger.info("subscribe_unconfirmed", error=str(error))

    async def _unsubscribe_channel(self, name: str) -> None:
        del self._inboxes[name]
        self._response_ids.pop(name, None)
        self._subscription_acks.pop(name, None)
        if self._pubsub is not None:
            try:
                await self._pubsub.unsubscribe(name)
            except REDIS_ERRORS as error:
                logger.info("unsubscribe_failed", error=str(error))

    async def poll_idle_readers(self) -> None:
        """Looks from time to time whether the logs of idle readers have moved, because a
        notification may be lost."""
        poll = self._settings.web.poll.total_seconds()
        step = min(_FAST_POLL_AFTER / 2, poll / 2)
        while True:
            await asyncio.sleep(step)
            idle = []
            for response_id, inbox in self._all_readers():
                inbox.idle_seconds += step
                if inbox.idle_seconds >= (min(_FAST_POLL_AFTER, poll) if inbox.poll_fast else poll):
                    inbox.poll_fast = False
                    inbox.idle_seconds = 0.0
                    idle.append((response_id, inbox))
            try:
                await self._wake_moved(idle)
            except DATABASE_UNAVAILABLE as error:
                logger.warning("idle_poll_failed", error=str(error).strip())
                for _, inbox in idle:
                    inbox.idle_seconds = poll  # again after the next step

    async def _wake_moved(self, readers: list[tuple[UUID, Inbox]]) -> None:
        """Makes those of these readers read the log whose log has moved: one statement for many."""
        for start in range(0, len(readers), _MAX_POSITIONS):
            part = readers[start : start + _MAX_POSITIONS]
            positions = {
                "ids": Uuids([response_id for response_id, _ in part]),
                "numbers": Ints([inbox.number for _, inbox in part]),
                "attempts": Ints([inbox.attempt for _, inbox in part]),
            }
            for place in await fetch(self._pool, MOVED_LOGS, positions):
                part[place - 1][1].wake()

    def _all_readers(self) -> list[tuple[UUID, Inbox]]:
        return [
            (self._response_ids[name], inbox)
            for name, inboxes in self._inboxes.items()
            for inbox in inboxes
        ]

    async def poll_journals(self) -> None:
        """While the bus is disconnected, delivers events from the workers' journals, and looks
        once a second whether the readers' logs have moved."""
        while True:
            last: dict[UUID, int] = {}
            polls = 0
            while not self.healthy and self._response_ids:
                polls += 1
                try:
                    await self._read_journals(last)
                    if polls % _POLLS_PER_LOOK == 0:
                        await self._wake_moved(self._all_readers())
                except DATABASE_UNAVAILABLE as error:
                    logger.warning("journal_poll_failed", error=str(error).strip())
                await asyncio.sleep(_POLL_INTERVAL)
            await asyncio.sleep(_POLL_INTERVAL)

    async def _read_journals(self, last: dict[UUID, int]) -> None:
        """Delivers the workers' new journal batches; `last`: worker -> the last batch delivered."""
        response_ids = list(self._response_ids.values())
        for worker in await fetch(self._pool, OWNERS, {"ids": response_ids}):
            if worker not in last:
                last[worker] = (await fetch(self._pool, LAST_BATCH, {"worker": worker}))[0]
                self.wake_all()
                continue
            new = {"worker": worker, "last": last[worker]}
            for batch in await fetch(self._pool, JOURNAL_BATCHES, new):
                last[worker] = batch.batch
                self._deliver_batch(batch)

    def _deliver_batch(self, batch: JournalBatch) -> None:
        for response_id, block in batch.blocks():
            for inbox in self._inboxes.get(events(response_id), ()):
                inbox.put(block)


def _distribute(readers: set[Inbox], payload: bytes) -> None:
    """Delivers a message: `<attempt> <first> <last>\\n<frames>`.

    An empty one announces an ending, which is read from the log.
    """
    if not payload:
        for inbox in readers:
            inbox.wake()
        return
    head, _, frames = payload.partition(b"\n")
    attempt, first, last = map(int, head.split())
    block = LogBlock(attempt, first, last, frames)
    for inbox in readers:
        inbox.put(block)
