"""The live bus: a Redis pub/sub connection of a web process, whose messages go to all readers.

The bus is only for speed. What it loses, a reader finds in the log (web/stream/polls.py).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID

import structlog

from models.config.settings import Settings
from models.db.queries.common import LogBlock
from models.redis.channels import event_server, events, web_process
from models.redis.client import REDIS_ERRORS, redis_client
from models.redis.raw_connection import RawConnection, listen, pack, stay_connected, subscribe
from web.stream.inboxes import Channel, EndInbox, Inbox, distribute

logger = structlog.get_logger()

_SILENCE = 2.5
"""Seconds without a reply after which the bus is connected again."""
_SUBSCRIBE_TIMEOUT = 1.0
_PREPARED_SECONDS = 10.0
"""So long a prepared inbox waits for its reader."""
_RECONNECT_DELAY = 0.25
"""Seconds before the bus is connected again."""
_UNSUBSCRIBE_DELAY = 0.1
"""Seconds after which an unsubscription is sent, unless another command takes it along."""


class Bus:
    """The subscriptions of one web process. Each Redis server of events has its share of the
    responses; the others do not notice when one is away."""

    def __init__(self, settings: Settings, lease_id: UUID) -> None:
        count = len(settings.event_servers)
        self._servers = [ServerBus(settings, lease_id, number) for number in range(count)]

    @property
    def healthy(self) -> bool:
        """Each server answers."""
        return all(server.healthy for server in self._servers)

    @property
    def readers(self) -> int:
        """Number of inboxes: streams, and requests that wait for the end of a response."""
        return sum(server.readers for server in self._servers)

    def prepare(self, response_id: UUID) -> Channel:
        """As `ServerBus.prepare`."""
        return self._of(response_id).prepare(response_id)

    def subscribe(
        self, response_id: UUID, *, only_end: bool = False
    ) -> AbstractAsyncContextManager[Inbox]:
        """As `ServerBus.subscribe`."""
        return self._of(response_id).subscribe(response_id, only_end=only_end)

    def all_readers(self, *, unserved: bool = False) -> list[tuple[UUID, Inbox]]:
        """The inboxes, each with the id of its response. `unserved`: only those whose server is
        away."""
        return [
            reader
            for server in self._servers
            if not (unserved and server.healthy)
            for reader in server.all_readers()
        ]

    @property
    def unserved_responses(self) -> list[UUID]:
        """The ids of the responses that have readers, and whose server is away."""
        away = [server for server in self._servers if not server.healthy]
        return [response for server in away for response in server.read_responses]

    def wake_all(self, *, unserved: bool = False) -> None:
        """Makes every reader read the log."""
        for _, inbox in self.all_readers(unserved=unserved):
            inbox.wake()

    def deliver(self, response_id: UUID, block: LogBlock) -> None:
        """Gives a block that did not come by the bus to the readers of its response."""
        self._of(response_id).deliver(response_id, block)

    async def run(self) -> None:
        """Receives messages for ever; reconnects after errors."""
        await asyncio.gather(*(server.run() for server in self._servers))

    def drop_prepared(self) -> None:
        """Removes prepared inboxes whose readers did not come in time."""
        for server in self._servers:
            server.drop_prepared()

    def _of(self, response_id: UUID) -> "ServerBus":
        return self._servers[event_server(events(response_id), len(self._servers))]


class ServerBus:
    """The subscriptions on one Redis server."""

    def __init__(self, settings: Settings, lease_id: UUID, number: int) -> None:
        """`number`: of the server in `event_servers`."""
        self._settings = settings
        self._lease_id = lease_id
        self._number = number
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

    def all_readers(self) -> list[tuple[UUID, Inbox]]:
        """The inboxes, each with the id of its response."""
        return [
            (channel.response_id, inbox)
            for channel in self._channels.values()
            for inbox in channel.inboxes
        ]

    @property
    def read_responses(self) -> list[UUID]:
        """The ids of the responses that have readers."""
        return [channel.response_id for channel in self._channels.values()]

    def deliver(self, response_id: UUID, block: LogBlock) -> None:
        """As `Bus.deliver`."""
        channel = self._channels.get(events(response_id).encode())
        if channel is not None:
            for inbox in channel.inboxes:
                inbox.put(block)

    async def run(self) -> None:
        """As `Bus.run`."""
        name = f"web-{self._lease_id.hex}"
        redis = redis_client(self._settings, name, timeout=None, server=self._number)
        try:
            await stay_connected(redis, self._listen, "bus_disconnected", pause=_RECONNECT_DELAY)
        finally:
            await redis.aclose()

    async def _listen(self, connection: RawConnection) -> None:
        try:
            await subscribe(connection, web_process(self._lease_id))
            # New readers subscribe themselves from here on; existing readers are subscribed here.
            self._connection = connection
            self._subscribe_again(connection)
            await listen(connection, self._receive, _SILENCE)
        finally:
            self._connection = None

    def _subscribe_again(self, connection: RawConnection) -> None:
        """Subscribes all channels. Their readers read the log when Redis has confirmed it."""
        self._commands.clear()
        for channel in self._channels.values():
            channel.has_missed = True
            channel.confirmed.clear()
        self._unconfirmed = dict.fromkeys(self._channels, 1)
        if self._channels:
            connection.write([pack(b"SUBSCRIBE", *self._channels)])

    def _receive(self, reply: Any) -> None:
        """`reply`: a list of bytes, or the bytes of a PONG."""
        kind = reply[0]
        if kind == b"message":
            channel = self._channels.get(reply[1])
            if channel is not None:
                distribute(channel.inboxes, reply[2])
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
            # The reader still gets its events: `LogPolls` makes it read the log.
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

    def drop_prepared(self) -> None:
        """As `Bus.drop_prepared`."""
        now = asyncio.get_running_loop().time()
        while self._prepared and self._prepared[0].prepared_until <= now:
            channel = self._prepared.popleft()
            inbox, channel.prepared = channel.prepared, None
            if inbox is not None:
                self._leave(channel, inbox)
