"""The live bus as a web process hears it: one pub/sub connection, fanned out to readers (design §5).

The bus is for speed only. What it delivers goes into a reader's inbox; what it loses the reader finds in the logs. While it is away,
the journals of the workers concerned are read instead, once per process.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch
from models.db.queries import statements
from models.deadlines import IdleTimeout
from models.redis.channels import events
from models.redis.client import REDIS_ERRORS

logger = structlog.get_logger()

_PING_INTERVAL = 1.0
"""Seconds between two pings on the bus; without any answer for twice that it counts as away."""
_SUBSCRIBE_TIMEOUT = 1.0
_POLL_INTERVAL = 0.25
"""Seconds between two looks at the journals while the bus is away."""
_FAST_POLL_AFTER = 2.0
"""Seconds of silence after which a reader who has just been told something looks at the logs: its worker may have lost Redis (I8)."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive frames of one response under one attempt; numbers inclusive."""

    attempt: int
    first: int
    last: int
    frames: bytes


@dataclass(slots=True, eq=False)
class Inbox:
    """What has arrived for one reader. Bounded: what does not fit is dropped, and the reader finds the hole."""

    limit: int
    blocks: deque[Block] = field(default_factory=deque)
    size: int = 0
    must_read_log: bool = False
    """The reader should look at the logs: an ending, a hole, a bus that came back."""
    idle_seconds: float = 0.0
    """Seconds since something came."""
    poll_fast: bool = False
    """The last look or wait brought something, so that silence is news."""
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, block: Block) -> None:
        """Takes a block if there is room for it."""
        if self.size + len(block.frames) > self.limit:
            self.wake()
            return
        self.blocks.append(block)
        self.size += len(block.frames)
        self.idle_seconds = 0.0
        self.poll_fast = True
        self._ready.set()

    def wake(self) -> None:
        """Sends the reader to the logs."""
        self.must_read_log = True
        self.idle_seconds = 0.0
        self._ready.set()

    async def next(self) -> Block | None:
        """The next block; None when the reader should look at the logs: it was nudged, and a long silence nudges too."""
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
    """One web process's ear."""

    def __init__(self, settings: Settings, pool: Pool, lease_id: UUID) -> None:
        self._settings = settings
        self._pool = pool
        self._lease_id = lease_id
        self._inboxes: dict[str, set[Inbox]] = {}
        self._response_ids: dict[str, UUID] = {}
        self._subscription_acks: dict[str, asyncio.Event] = {}
        self._pubsub: PubSub | None = None
        """Set while the bus is healthy."""

    @property
    def healthy(self) -> bool:
        """The bus answers."""
        return self._pubsub is not None

    @property
    def readers(self) -> int:
        """Inboxes there are: streams, and requests that wait for an ending."""
        return sum(map(len, self._inboxes.values()))

    @asynccontextmanager
    async def subscribe(self, response_id: UUID) -> AsyncIterator[Inbox]:
        """An inbox for one reader, after Redis has acknowledged the subscription or has shown that it will not."""
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
        """Sends every reader to the logs."""
        for readers in self._inboxes.values():
            for inbox in readers:
                inbox.wake()

    async def run(self) -> None:
        """Listens for ever, reconnecting."""
        while True:
            redis = Redis.from_url(
                self._settings.redis_url.get_secret_value(),
                client_name=f"web-{self._lease_id.hex}",
                socket_timeout=None,
                socket_connect_timeout=1,
                socket_keepalive=True,
            )
            try:
                async with redis.pubsub() as pubsub:
                    await self._listen(pubsub)
            except REDIS_ERRORS as error:
                logger.warning("bus_away", error=str(error))
            finally:
                self._pubsub = None
                await redis.aclose()
            await asyncio.sleep(_POLL_INTERVAL)

    # --- healthy ---

    async def _listen(self, pubsub: PubSub) -> None:
        async with asyncio.timeout(2 * _PING_INTERVAL):
            await pubsub.subscribe(f"web:{self._lease_id.hex}")
        # From here on new readers subscribe by themselves; those who are here already are subscribed now.
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
            logger.info("bus_pulse_lost", error=str(error))  # the reading side notices the silence

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
            logger.info(
                "subscription_unheard", error=str(error)
            )  # the slow look at the logs stands behind it

    async def _unsubscribe_channel(self, name: str) -> None:
        del self._inboxes[name]
        self._response_ids.pop(name, None)
        self._subscription_acks.pop(name, None)
        if self._pubsub is not None:
            try:
                await self._pubsub.unsubscribe(name)
            except REDIS_ERRORS as error:
                logger.info("unsubscribe_unheard", error=str(error))

    async def poll_idle_readers(self) -> None:
        """Sends readers to whom nothing has come for a while to the logs: a lost nudge must not leave anybody waiting for ever."""
        poll = self._settings.web.poll.total_seconds()
        step = min(_FAST_POLL_AFTER / 2, poll / 2)
        while True:
            await asyncio.sleep(step)
            for readers in self._inboxes.values():
                for inbox in readers:
                    inbox.idle_seconds += step
                    if inbox.idle_seconds >= (
                        min(_FAST_POLL_AFTER, poll) if inbox.poll_fast else poll
                    ):
                        inbox.poll_fast = False
                        inbox.wake()

    # --- away ---

    async def poll_journals(self) -> None:
        """While the bus is away, shows readers what the workers concerned journal, and sends them to the logs once a second for the rest."""
        while True:
            last: dict[UUID, int] = {}
            polls = 0
            while not self.healthy and self._response_ids:
                try:
                    await self._read_journals(last)
                except DATABASE_UNAVAILABLE as error:
                    logger.warning("journals_away", error=str(error).strip())
                polls += 1
                if polls % int(_PING_INTERVAL / _POLL_INTERVAL) == 0:
                    self.wake_all()
                await asyncio.sleep(_POLL_INTERVAL)
            await asyncio.sleep(_POLL_INTERVAL)

    async def _read_journals(self, last: dict[UUID, int]) -> None:
        for row in await fetch(
            self._pool, statements.OWNERS, {"ids": list(self._response_ids.values())}
        ):
            worker = row["worker"]
            if worker not in last:
                last[worker] = (await fetch(self._pool, statements.LAST_BATCH, {"worker": worker}))[
                    0
                ]["last"]
                self.wake_all()
                continue
            for batch in await fetch(
                self._pool, statements.JOURNAL_BATCHES, {"worker": worker, "last": last[worker]}
            ):
                last[worker] = batch["batch"]
                columns = ("response_ids", "attempts", "first_numbers", "last_numbers", "frames")
                for response_id, *block in zip(*(batch[column] for column in columns), strict=True):
                    for inbox in self._inboxes.get(events(response_id), ()):
                        inbox.put(Block(*block))


def _distribute(readers: set[Inbox], payload: bytes) -> None:
    """`<attempt> <first> <last>\\n<frames>`, or nothing at all for an ending: that is read from the log."""
    if not payload:
        for inbox in readers:
            inbox.wake()
        return
    head, _, frames = payload.partition(b"\n")
    attempt, first, last = map(int, head.split())
    block = Block(attempt, first, last, frames)
    for inbox in readers:
        inbox.put(block)
