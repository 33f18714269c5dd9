"""The live bus: one Redis pub/sub connection of a web process, whose messages go to all readers.

The bus is only for speed. What it loses, a reader finds in the log. While it is disconnected, the
process polls the journals of the workers whose responses are read.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import structlog
from redis.asyncio import Redis

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
from models.redis.raw_connection import RawConnection, pack

logger = structlog.get_logger()

_PING_INTERVAL = 1.0
"""Seconds between two pings on the bus, which ends after 2.5 times that without a message."""
_SUBSCRIBE_TIMEOUT = 1.0
_PREPARED_SECONDS = 10.0
"""So long a prepared inbox waits for its reader."""
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
_UNSUBSCRIBE_DELAY = 0.1
"""Seconds after which an unsubscription is sent, unless another command takes it along."""
_PING = pack(b"PING")


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
    was_prepared: bool = False
    """It has got every message since Redis confirmed the subscription."""
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


class EndInbox(Inbox):
    """For a reader that waits only for the end: deltas do not wake it."""

    def put(self, block: LogBlock) -> None:  # noqa: ARG002
        """Drops the block."""
        self.idle_seconds = 0.0


@dataclass(slots=True, eq=False)
class Channel:
    """The subscription to one response's events, which all its readers in this process share."""

    name: bytes
    response_id: UUID
    inboxes: set[Inbox] = field(default_factory=set)
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while Redis has confirmed the present subscription."""
    has_missed: bool = False
    """The bus was disconnected since its readers have read the log."""
    prepared: Inbox | None = None
    """An inbox without a reader yet."""
    prepared_until: float = 0.0
    """in the loop's time"""

    @property
    def is_subscribed(self) -> bool:
        """Redis has confirmed the subscription: each message that is sent now arrives."""
        return self.confirmed.is_set()

    def confirm(self) -> None:
        """Redis has confirmed the subscription."""
        self.confirmed.set()
        if self.has_missed:
            self.has_missed = False
            for inbox in self.inboxes:
                inbox.wake()


class Bus:
    """The subscriptions of one web process."""

    def __init__(self, settings: Settings, pool: Pool, lease_id: UUID) -> None:
        self._settings = settings
        self._pool = pool
        self._lease_id = lease_id
        self._channels: dict[bytes, Channel] = {}
        self._prepared: deque[Channel] = deque()
        """Channels that were prepared, oldest first. Their readers may have come meanwhile."""
        self._unconfirmed: dict[bytes, int] = {}
        """How often each name was subscribed without a confirmation. Only the last confirmation
        counts: a reader may have left, and the next one come, before the first confirmation."""
        self._connection: RawConnection | None = None
        """Set while the bus is connected."""
        self._commands: list[bytes] = []
        """Packed commands that are sent together: a write of its own costs more than all the rest
        of a subscription."""
        self._sending: asyncio.Handle | None = None
        """Sends them when the tasks that are ready now have run."""

    @property
    def healthy(self) -> bool:
        """Redis answers on the bus."""
        return self._connection is not None

    @property
    def readers(self) -> int:
        """Number of inboxes: streams, and requests that wait for the end of a response."""
        return sum(len(channel.inboxes) for channel in self._channels.values())

    def prepare(self, response_id: UUID) -> Channel:
        """Subscribes a reader that will come within some seconds, and returns at once.

        If Redis confirms that before the response is enqueued, the reader gets all that a worker
        publishes, and need not read the log at its begin.
        """
        channel = self._channel(response_id)
        if channel.prepared is None:
            channel.prepared = Inbox(self._settings.web.reader_buffer, was_prepared=True)
            channel.inboxes.add(channel.prepared)
        channel.prepared_until = asyncio.get_running_loop().time() + _PREPARED_SECONDS
        self._prepared.append(channel)
        return channel

    @asynccontextmanager
    async def subscribe(self, response_id: UUID, *, only_end: bool = False) -> AsyncIterator[Inbox]:
        """An inbox for one reader, after Redis has confirmed the subscription or has failed to.
        `only_end`: the reader waits only for the end."""
        channel = self._channel(response_id)
        inbox: Inbox | None = EndInbox(0) if only_end else None
        if inbox is None:
            inbox, channel.prepared = channel.prepared, None
        if inbox is None:
            inbox = Inbox(self._settings.web.reader_buffer)
        channel.inboxes.add(inbox)
        try:
            await self._wait_until_subscribed(channel)
            yield inbox
        finally:
            self._leave(channel, inbox)

    def wake_all(self) -> None:
        """Makes every reader read the log."""
        for _, inbox in self._all_readers():
            inbox.wake()

    async def run(self) -> None:
        """Receives messages for ever; reconnects after errors."""
        while True:
            redis = connect_redis(self._settings, f"web-{self._lease_id.hex}", timeout=None)
            try:
                await self._connect_and_listen(redis)
            except REDIS_ERRORS as error:
                logger.warning("bus_disconnected", error=str(error))
            finally:
                self._connection = None
                await redis.aclose()
            await asyncio.sleep(_POLL_INTERVAL)

    async def _connect_and_listen(self, redis: Redis) -> None:
        async with asyncio.timeout(2 * _PING_INTERVAL):
            connection = await RawConnection.open(redis)
        try:
            connection.write([pack(b"SUBSCRIBE", web_process(self._lease_id).encode())])
            async with asyncio.timeout(2 * _PING_INTERVAL):
                await connection.read()
            # New readers subscribe themselves from here on; existing readers are subscribed here.
            self._connection = connection
            self._subscribe_again(connection)
            await self._listen(connection)
        finally:
            await connection.abort()

    def _subscribe_again(self, connection: RawConnection) -> None:
        """Subscribes all channels. Their readers read the log when Redis has confirmed it."""
        self._commands.clear()
        for channel in self._channels.values():
            channel.has_missed = True
            channel.confirmed.clear()
        self._unconfirmed = dict.fromkeys(self._channels, 1)
        if self._channels:
            connection.write([pack(b"SUBSCRIBE", *self._channels)])

    async def _listen(self, connection: RawConnection) -> None:
        pings = asyncio.create_task(self._keep_pinging(connection))
        loop = asyncio.get_running_loop()
        idle_timeout = IdleTimeout()
        try:
            with idle_timeout.extend():
                while True:
                    idle_timeout.set_deadline(loop.time() + 2.5 * _PING_INTERVAL)
                    for reply in await connection.read():
                        self._deliver(reply)
        finally:
            pings.cancel()

    async def _keep_pinging(self, connection: RawConnection) -> None:
        try:
            while True:
                await asyncio.sleep(_PING_INTERVAL)
                connection.write([_PING])
        except REDIS_ERRORS as error:
            # `_listen` sees that no message arrives.
            logger.info("bus_ping_failed", error=str(error))

    def _deliver(self, reply: Any) -> None:
        """`reply`: a list of bytes, or the bytes of a PONG."""
        kind = reply[0]
        if kind == b"message":
            channel = self._channels.get(reply[1])
            if channel is not None:
                _distribute(channel.inboxes, reply[2])
        elif kind == b"subscribe":
            self._confirm(reply[1])

    def _confirm(self, name: bytes) -> None:
        pending = self._unconfirmed.pop(name, 0) - 1
        if pending > 0:
            self._unconfirmed[name] = pending
        elif (channel := self._channels.get(name)) is not None:
            channel.confirm()

    def _channel(self, response_id: UUID) -> Channel:
        """The channel of this response. A new one is subscribed; Redis confirms it later."""
        name = events(response_id).encode()
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = Channel(name, response_id)
            self._unconfirmed[name] = self._unconfirmed.get(name, 0) + 1
            self._commands.append(pack(b"SUBSCRIBE", name))
            if self._sending is None:
                self._sending = asyncio.get_running_loop().call_soon(self._send_commands)
        return channel

    async def _wait_until_subscribed(self, channel: Channel) -> None:
        if channel.is_subscribed or not self.healthy:
            return
        try:
            async with asyncio.timeout(_SUBSCRIBE_TIMEOUT):
                await channel.confirmed.wait()
        except TimeoutError:
            # The reader still gets its events: `poll_idle_readers` makes it read the log.
            logger.info("subscribe_unconfirmed")

    def _leave(self, channel: Channel, inbox: Inbox) -> None:
        """Removes an inbox. A channel without any is not subscribed any more."""
        channel.inboxes.discard(inbox)
        if not channel.inboxes and self._channels.get(channel.name) is channel:
            del self._channels[channel.name]
            if not self._commands:
                asyncio.get_running_loop().call_later(_UNSUBSCRIBE_DELAY, self._send_commands)
            self._commands.append(pack(b"UNSUBSCRIBE", channel.name))

    def _send_commands(self) -> None:
        """Sends what is to be sent. While the bus is disconnected that is nothing: it subscribes
        all channels when it is connected. If the connection is lost, `_listen` sees it."""
        self._sending = None
        commands, self._commands = self._commands, []
        if self._connection is not None and commands:
            try:
                self._connection.write(commands)
            except REDIS_ERRORS as error:
                logger.info("bus_commands_failed", error=str(error))

    def _drop_prepared(self) -> None:
        """Removes prepared inboxes whose readers did not come in time."""
        now = asyncio.get_running_loop().time()
        while self._prepared and self._prepared[0].prepared_until <= now:
            channel = self._prepared.popleft()
            inbox, channel.prepared = channel.prepared, None
            if inbox is not None:
                self._leave(channel, inbox)

    async def poll_idle_readers(self) -> None:
        """Looks from time to time whether the logs of idle readers have moved, because a
        notification may be lost."""
        poll = self._settings.web.poll.total_seconds()
        step = min(_FAST_POLL_AFTER / 2, poll / 2)
        while True:
            await asyncio.sleep(step)
            self._drop_prepared()
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
            (channel.response_id, inbox)
            for channel in self._channels.values()
            for inbox in channel.inboxes
        ]

    async def poll_journals(self) -> None:
        """While the bus is disconnected, delivers events from the workers' journals, and looks
        once a second whether the readers' logs have moved."""
        while True:
            last: dict[UUID, int] = {}
            polls = 0
            while not self.healthy and self._channels:
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
        response_ids = [channel.response_id for channel in self._channels.values()]
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
            channel = self._channels.get(events(response_id).encode())
            if channel is not None:
                for inbox in channel.inboxes:
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
