"""Which creates of one WebSocket are admitted, wait and run (docs/websocket.md)."""

import asyncio
from collections.abc import Awaitable, Callable

from models.errors import InvalidRequest
from models.load.budget import Reservation
from web.http.body import UNCOUNTED_BYTES

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
