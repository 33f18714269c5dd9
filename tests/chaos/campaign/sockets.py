"""A client that creates its responses over WebSockets."""

import asyncio
from collections import deque
from collections.abc import Callable

from tests.chaos.audit.record import JSON, ResponseTrace
from tests.chaos.audit.sse import parse
from tests.chaos.campaign.plan import Client
from tests.support.chaos.recorded_socket import RecordedSocket
from tests.support.chaos.recording_client import RecordedClients, request_body


class SocketClient:
    """One client with one WebSocket at a time; after the end of a connection it opens another."""

    def __init__(
        self,
        clients: RecordedClients,
        client: Client,
        new_trace: Callable[[str, ResponseTrace | None], ResponseTrace],
        fields: Callable[[ResponseTrace, Client], JSON],
    ) -> None:
        """`new_trace` makes the trace of a create from its name and the response that it continues;
        `fields` the fields of its body that the trace does not have."""
        self._clients = clients
        self._client = client
        self._new_trace = new_trace
        self._fields = fields
        self._remaining = [
            deque(f"{lane}.{create}" for create in range(client.creates))
            for lane in range(client.lanes)
        ]
        """The creates of each lane that were not sent yet."""
        self._last: list[ResponseTrace | None] = [None] * client.lanes
        """The last response of each lane that was completed."""

    async def run(self) -> None:
        """Sends all creates; returns when each has ended, or its connection."""
        disconnects = iter(self._client.disconnects)
        while any(self._remaining):
            socket = await self._clients.open_socket()
            if (frames := next(disconnects, None)) is not None:
                socket.disconnect_after(frames)
            try:
                await asyncio.gather(
                    *(self._run_lane(socket, lane) for lane in range(self._client.lanes))
                )
            finally:
                await socket.close()
            if not self._client.is_stored:  # no other connection can continue these
                self._last = [None] * self._client.lanes

    async def _run_lane(self, socket: RecordedSocket, lane: int) -> None:
        """Sends creates one after the other, each continuing the last, while the socket is open."""
        while self._remaining[lane] and socket.is_open:
            trace = self._new_trace(self._remaining[lane].popleft(), self._last[lane])
            body = {**request_body(trace), **self._fields(trace, self._client)}
            await socket.create(trace, body, f"lane-{lane}" if self._client.lanes > 1 else None)
            if trace.create.status == 503:
                await asyncio.sleep(1)
            ending = parse(trace.readings[0]).terminal_event if trace.readings else None
            if ending is not None and ending.kind == "response.completed":
                self._last[lane] = trace
