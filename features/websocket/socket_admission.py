"""Which creates of one WebSocket are admitted, wait and run (docs/websocket.md), and the line that
each has in the log when it has ended (docs/operations.md, "Logs"): the socket's own line comes when
it closes, which may be an hour later."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from uuid import UUID

from models import logs
from models.errors import ApiError, InvalidRequest
from models.ids import response_id
from models.load.budget import Reservation
from web.http.body import UNCOUNTED_BYTES
from web.http.request_record import RequestRecord

_MAX_RUNNING = 16
"""Creates that one connection may run at a time, over all streams; OpenAI's limit."""
_MAX_STREAMS = 32
"""Ids of streams that one connection may use; OpenAI's limit."""
_MAX_PENDING = 64
"""Creates of one connection that wait or run."""


class SocketAdmission:
    """The pending creates of one connection. Those of a stream run one after the other, in their
    order: that is a promise to the client, and no `FairQueue` (models/load/) keeps it."""

    def __init__(self, max_bytes: int, held: Reservation) -> None:
        """`max_bytes`: the frames of all pending creates together; a single one may be larger.
        `held`: what those that wait have of the process's memory for bodies."""
        self._max_bytes = max_bytes
        self._held = held
        self._waiting_bytes = 0
        """Of those that have no memory of their own."""
        self._running_slots = asyncio.Semaphore(_MAX_RUNNING)
        self._last_of: dict[str | None, asyncio.Task[None]] = {}
        """The id of a stream -> its last create, also when that has ended. None: creates without an
        id"""
        self._pending_bytes = 0
        self.pending: set[asyncio.Task[None]] = set()
        """The tasks of creates that wait or run."""
        self.idle = asyncio.Event()
        """Set while no create is pending."""
        self.idle.set()

    def require_capacity(self, stream_id: str | None, size: int) -> None:
        """Raises InvalidRequest if a create with a frame of `size` bytes cannot be started now."""
        named = len(self._last_of) - (None in self._last_of)
        if stream_id is not None and stream_id not in self._last_of and named >= _MAX_STREAMS:
            raise InvalidRequest(
                "This WebSocket connection has reached its maximum number of distinct stream "
                f"IDs ({_MAX_STREAMS}). Reuse an existing stream_id or open a new WebSocket "
                "connection.",
                param="stream_id",
                code="websocket_stream_limit_reached",
            )
        if len(self.pending) >= _MAX_PENDING or (
            self.pending and self._pending_bytes + size > self._max_bytes
        ):
            raise InvalidRequest(
                "Too many requests are queued on this WebSocket connection. "
                "Wait for a response to finish.",
                code="websocket_queue_full",
            )

    def may_wait(self, stream_id: str | None) -> bool:
        """Whether a create of this stream may have to wait before it runs."""
        last = self._last_of.get(stream_id)
        return len(self.pending) >= _MAX_RUNNING or (last is not None and not last.done())

    def count_waiting(self, size: int) -> Callable[[], None]:
        """Counts a create that waits. Raises ShareUsedUp or Unavailable if there is no memory for
        it. Returns what ends the counting; it may be called again."""
        self._hold(self._waiting_bytes + size)
        with_memory = [size]

        def end() -> None:
            self._hold(self._waiting_bytes - sum(with_memory))
            with_memory.clear()

        return end

    def _hold(self, waiting_bytes: int) -> None:
        self._held.resize(waiting_bytes if waiting_bytes > UNCOUNTED_BYTES else 0)
        self._waiting_bytes = waiting_bytes

    def start(
        self, stream_id: str | None, size: int, run: Callable[[], Awaitable[None]]
    ) -> asyncio.Task[None]:
        """Starts a task that awaits `run()` after the previous create of the stream has ended."""
        task = asyncio.create_task(self._run_in_turn(run, self._last_of.get(stream_id)))
        self._last_of[stream_id] = task
        self.pending.add(task)
        self.idle.clear()
        self._pending_bytes += size
        task.add_done_callback(lambda done: self._on_done(done, size))
        return task

    async def _run_in_turn(
        self, run: Callable[[], Awaitable[None]], previous: asyncio.Task[None] | None
    ) -> None:
        if previous is not None:
            await asyncio.wait({previous})
        async with self._running_slots:
            await run()

    def _on_done(self, task: asyncio.Task[None], size: int) -> None:
        self.pending.discard(task)
        if not self.pending:
            self.idle.set()
        self._pending_bytes -= size


_ACCEPTED = 200
_CLIENT_LEFT = 499


class CreateLog:
    """What the line of one create shows. It keeps nothing of the create's frame."""

    __slots__ = ("_error", "_is_complete", "_record", "_response", "_started_at", "_status")

    def __init__(self, record: RequestRecord) -> None:
        """`record`: of the socket. The frame of the create has arrived."""
        self._record = record
        self._started_at = time.monotonic()
        self._status: int | None = None
        """None: the client has got no event and no error yet."""
        self._error: str | None = None
        self._response: UUID | None = None
        self._is_complete = False

    def note_response(self, response: UUID) -> None:
        """The create has made or joined this response, whose events are sent from now on."""
        self._status, self._response = _ACCEPTED, response

    def note_error(self, error: ApiError) -> None:
        """The client gets this error, instead of the events or of the rest of them."""
        self._status = error.status if self._status is None else self._status
        self._error = error.code or error.type
        self._is_complete = self._response is None

    def note_end(self) -> None:
        """All events were sent."""
        self._is_complete = True

    def write(self, *, server_ended: bool) -> None:
        """Writes the line. `server_ended`: the server ended what is not complete, and not the
        client."""
        fields = self._record.client_fields() | {
            "status": self._status or _CLIENT_LEFT,
            "seconds": round(time.monotonic() - self._started_at, 6),
        }
        if self._error is not None:
            fields["error"] = self._error
        if self._response is not None:
            fields["response"] = response_id(self._response)
        if not self._is_complete:
            by_server = server_ended or self._error is not None
            fields["aborted"] = "server" if by_server else "client"
        logs.write_line("websocket_create", fields)
