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
from models.db.database import AWAY, Pool, fetch
from models.db.queries import statements
from models.deadlines import Patience
from models.redis.channels import events
from models.redis.client import UNHEARD

logger = structlog.get_logger()

_PULSE = 1.0
"""Seconds between two pings on the bus; without any answer for twice that it counts as away."""
_SUBSCRIBED_WITHIN = 1.0
_LOOK = 0.25
"""Seconds between two looks at the journals while the bus is away."""
_BRISK = 2.0
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
    look: bool = False
    """The reader should look at the logs: an ending, a hole, a bus that came back."""
    quiet: float = 0.0
    """Seconds since something came."""
    brisk: bool = False
    """The last look or wait brought something, so that silence is news."""
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, block: Block) -> None:
        """Takes a block if there is room for it."""
        if self.size + len(block.frames) > self.limit:
            self.nudge()
            return
        self.blocks.append(block)
        self.size += len(block.frames)
        self.quiet = 0.0
        self.brisk = True
        self._arrived.set()

    def nudge(self) -> None:
        """Sends the reader to the logs."""
        self.look = True
        self.quiet = 0.0
        self._arrived.set()

    async def next(self) -> Block | None:
        """The next block; None when the reader should look at the logs: it was nudged, and a long silence nudges too."""
        if not self.blocks and not self.look:
            self._arrived.clear()
            await self._arrived.wait()
        if not self.blocks:
            self.look = False
            return None
        block = self.blocks.popleft()
        self.size -= len(block.frames)
        return block


class Bus:
    """One web process's ear."""

    def __init__(self, settings: Settings, pool: Pool, me: UUID) -> None:
        self._settings = settings
        self._pool = pool
        self._me = me
        self._inboxes: dict[str, set[Inbox]] = {}
        self._ids: dict[str, UUID] = {}
        self._confirmed: dict[str, asyncio.Event] = {}
        self._channel: PubSub | None = None
        """Set while the bus is healthy."""

    @property
    def healthy(self) -> bool:
        """The bus answers."""
        return self._channel is not None

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
        self._ids[name] = response_id
        try:
            await self._listen_to(name)
            yield inbox
        finally:
            readers.discard(inbox)
            if not readers and self._inboxes.get(name) is readers:
                await self._forget(name)

    def nudge_all(self) -> None:
        """Sends every reader to the logs."""
        for readers in self._inboxes.values():
            for inbox in readers:
                inbox.nudge()

    async def run(self) -> None:
        """Listens for ever, reconnecting."""
        while True:
            redis = Redis.from_url(
                self._settings.redis_url.get_secret_value(),
                client_name=f"web-{self._me.hex}",
                socket_timeout=None,
                socket_connect_timeout=1,
                socket_keepalive=True,
            )
            try:
                async with redis.pubsub() as channel:
                    await self._listen(channel)
            except UNHEARD as error:
                logger.warning("bus_away", error=str(error))
            finally:
                self._channel = None
                await redis.aclose()
            await asyncio.sleep(_LOOK)

    # --- healthy ---

    async def _listen(self, channel: PubSub) -> None:
        async with asyncio.timeout(2 * _PULSE):
            await channel.subscribe(f"web:{self._me.hex}")
        # From here on new readers subscribe by themselves; those who are here already are subscribed now.
        self._channel = channel
        if self._inboxes:
            await channel.subscribe(*self._inboxes)
        self.nudge_all()
        pulse = asyncio.create_task(self._pulse(channel))
        loop = asyncio.get_running_loop()
        patience = Patience()
        try:
            with patience.lasting():
                while True:
                    patience.until(loop.time() + 2.5 * _PULSE)
                    self._deliver(await channel.parse_response(block=True))
        finally:
            pulse.cancel()

    async def _pulse(self, channel: PubSub) -> None:
        try:
            while True:
                await asyncio.sleep(_PULSE)
                await channel.ping()
        except UNHEARD as error:
            logger.info("bus_pulse_lost", error=str(error))  # the reading side notices the silence

    def _deliver(self, message: list[bytes]) -> None:
        kind = message[0]
        if kind == b"message":
            readers = self._inboxes.get(message[1].decode())
            if readers:
                _hand_out(readers, message[2])
        elif (
            kind == b"subscribe"
            and (confirmed := self._confirmed.pop(message[1].decode(), None)) is not None
        ):
            confirmed.set()

    async def _listen_to(self, name: str) -> None:
        channel = self._channel
        if channel is None:
            return
        confirmed = self._confirmed.setdefault(name, asyncio.Event())
        try:
            async with asyncio.timeout(_SUBSCRIBED_WITHIN):
                await channel.subscribe(name)
                await confirmed.wait()
        except UNHEARD as error:
            logger.info(
                "subscription_unheard", error=str(error)
            )  # the slow look at the logs stands behind it

    async def _forget(self, name: str) -> None:
        del self._inboxes[name]
        self._ids.pop(name, None)
        self._confirmed.pop(name, None)
        if self._channel is not None:
            try:
                await self._channel.unsubscribe(name)
            except UNHEARD as error:
                logger.info("unsubscribe_unheard", error=str(error))

    async def watch_silence(self) -> None:
        """Sends readers to whom nothing has come for a while to the logs: a lost nudge must not leave anybody waiting for ever."""
        poll = self._settings.web.poll.total_seconds()
        step = min(_BRISK / 2, poll / 2)
        while True:
            await asyncio.sleep(step)
            for readers in self._inboxes.values():
                for inbox in readers:
                    inbox.quiet += step
                    if inbox.quiet >= (min(_BRISK, poll) if inbox.brisk else poll):
                        inbox.brisk = False
                        inbox.nudge()

    # --- away ---

    async def stand_in(self) -> None:
        """While the bus is away, shows readers what the workers concerned journal, and sends them to the logs once a second for the rest."""
        while True:
            last: dict[UUID, int] = {}
            looks = 0
            while not self.healthy and self._ids:
                try:
                    await self._read_journals(last)
                except AWAY as error:
                    logger.warning("journals_away", error=str(error).strip())
                looks += 1
                if looks % int(_PULSE / _LOOK) == 0:
                    self.nudge_all()
                await asyncio.sleep(_LOOK)
            await asyncio.sleep(_LOOK)

    async def _read_journals(self, last: dict[UUID, int]) -> None:
        for row in await fetch(self._pool, statements.OWNERS, {"ids": list(self._ids.values())}):
            worker = row["worker"]
            if worker not in last:
                last[worker] = (await fetch(self._pool, statements.BATCH_NOW, {"worker": worker}))[
                    0
                ]["last"]
                self.nudge_all()
                continue
            for batch in await fetch(
                self._pool, statements.BATCHES, {"worker": worker, "last": last[worker]}
            ):
                last[worker] = batch["batch"]
                columns = ("response_ids", "attempts", "first_numbers", "last_numbers", "frames")
                for response_id, *block in zip(*(batch[column] for column in columns), strict=True):
                    for inbox in self._inboxes.get(events(response_id), ()):
                        inbox.put(Block(*block))


def _hand_out(readers: set[Inbox], payload: bytes) -> None:
    """`<attempt> <first> <last>\\n<frames>`, or nothing at all for an ending: that is read from the log."""
    if not payload:
        for inbox in readers:
            inbox.nudge()
        return
    head, _, frames = payload.partition(b"\n")
    attempt, first, last = map(int, head.split())
    block = Block(attempt, first, last, frames)
    for inbox in readers:
        inbox.put(block)
