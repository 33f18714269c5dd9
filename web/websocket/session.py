"""One WebSocket: creates in, events out (docs/websocket.md).

Creates of one lane run one after the other, lanes side by side. Each runs as a foreground POST with `stream` would: the same intake, the
same relay, and who leaves takes it along. The connection remembers the ids of unstored responses it made, and nothing else of them: what
was said rests in Postgres.
"""

import asyncio
import time
from collections import OrderedDict
from contextlib import aclosing, suppress
from datetime import timedelta
from uuid import UUID

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from models.db.database import DATABASE_UNAVAILABLE
from models.db.database import write_idempotent as change
from models.db.queries import statements
from models.errors import ApiError, InvalidRequest, RequestTooLarge, Unauthenticated, Unavailable
from models.ids import response_id
from models.wire.events import iter_frames
from web.responses.create import AcceptedResponse
from web.state import AppState
from web.stream.obfuscation import obfuscate_if_requested
from web.stream.reader import DONE
from web.websocket.frames import CreateFrame, FrameRefused, error_frame, event_frame, parse_frame

logger = structlog.get_logger()

_MAX_RUNNING = 16
"""Responses that one connection may have under way, over all lanes; OpenAI's own limit."""
_MAX_LANES = 32
"""Names of lanes that one connection may use; OpenAI's own limit."""
_MAX_PENDING = 64
"""Creates of one connection that wait or run."""
_MAX_UNSTORED_IDS = 1000
"""Unstored responses that one connection may go on from; the oldest are forgotten."""
_LARGE_FRAME = 256 * 1024
"""Bytes from which a frame is decoded beside the event loop."""

_GOING_AWAY = 1001
_POLICY_VIOLATION = 1008
_SERVICE_RESTART = 1012


class SocketSession:
    """What is known of one connection while it lasts."""

    def __init__(self, socket: WebSocket, state: AppState, key: str) -> None:
        """`key`: the API key of the handshake, which is looked at again with every create."""
        self._socket = socket
        self._state = state
        self._key = key
        self._deadline = time.monotonic() + state.settings.web.socket_time.total_seconds()
        self._running_slots = asyncio.Semaphore(_MAX_RUNNING)
        self._last_in_lane: dict[str | None, asyncio.Task[None]] = {}
        """lane -> its last create; a lane that was used once is never forgotten"""
        self._pending: set[asyncio.Task[None]] = set()
        self._pending_bytes = 0
        """of the creates under way"""
        self._unstored_ids: OrderedDict[UUID, None] = OrderedDict()
        self._refusal: ApiError | None = None
        """Why no further creates are taken."""
        self._key_revoked = asyncio.Event()
        """The key is no longer one; the client has been told."""
        self._idle = asyncio.Event()
        """Nothing is under way."""
        self._idle.set()

    async def serve(self) -> None:
        """Until the client leaves, its time is over, or the server stops. The socket is accepted."""
        reading = asyncio.create_task(self._read())
        try:
            with suppress(WebSocketDisconnect):
                code = await self._wait_for_close(reading)
                if code is not None and not reading.done():
                    await self._socket.close(code)
        finally:
            unfinished = {reading, *self._pending}
            for task in unfinished:
                task.cancel()
            await asyncio.wait(unfinished)
            for error in filter(
                None, (task.exception() for task in unfinished if not task.cancelled())
            ):
                logger.error("socket_broke", exc_info=error)
            self._state.spawn(self._set_retention(list(self._unstored_ids), timedelta(0)))

    # --- in ---

    async def _wait_for_close(self, reading: asyncio.Task[None]) -> int | None:
        """Why the connection ends, as a close code; None: the client has left."""
        state = self._state
        if not await _wait_for_first(
            reading, state.stop_event, self._key_revoked, within=self._deadline - time.monotonic()
        ):
            return None
        if not self._key_revoked.is_set():
            self._refusal = (
                Unavailable("The server is stopping. Please retry.")
                if state.stop_event.is_set()
                else _connection_limit_reached(state)
            )
            if not await _wait_for_first(
                reading, self._idle, state.grace_expired, self._key_revoked
            ):
                return None
        if self._key_revoked.is_set():
            return _POLICY_VIOLATION
        if state.stop_event.is_set():
            if not self._idle.is_set():
                await self._send_error(Unavailable("The server is stopping. Please retry."), None)
            return _SERVICE_RESTART
        await self._send_error(_connection_limit_reached(state), None)
        return _GOING_AWAY

    async def _read(self) -> None:
        """Takes frames until the client leaves. It never waits for a response: pings are answered by those who read."""
        with suppress(WebSocketDisconnect):
            while (message := await self._socket.receive())["type"] != "websocket.disconnect":
                try:
                    await self._start_create(message.get("text"))
                except FrameRefused as refused:
                    await self._send_error(refused.error, refused.stream_id)

    async def _start_create(self, text: str | None) -> None:
        """Begins what a frame asks for. Raises FrameRefused."""
        if text is None:
            raise FrameRefused(
                InvalidRequest(
                    "Binary frames are not supported. Send JSON as text.", code="invalid_json"
                ),
                None,
            )
        raw = text.encode()
        limit = self._state.settings.limits.body
        if len(raw) > limit:
            raise FrameRefused(RequestTooLarge(limit), None)
        create = (
            await asyncio.to_thread(parse_frame, raw)
            if len(raw) > _LARGE_FRAME
            else parse_frame(raw)
        )
        self._require_capacity(create, limit)
        task = asyncio.create_task(self._run(create, self._last_in_lane.get(create.stream_id)))
        self._last_in_lane[create.stream_id] = task
        self._pending.add(task)
        self._idle.clear()
        self._pending_bytes += create.size
        task.add_done_callback(lambda done: self._on_create_done(done, create.size))

    def _require_capacity(self, create: CreateFrame, limit: int) -> None:
        lane = create.stream_id
        if self._refusal is not None:
            raise FrameRefused(self._refusal, lane)
        if (
            lane is not None
            and lane not in self._last_in_lane
            and len(self._last_in_lane) - (None in self._last_in_lane) >= _MAX_LANES
        ):
            message = (
                f"This WebSocket connection has reached its maximum number of distinct stream IDs ({_MAX_LANES}). Reuse an existing stream_id or "
                "open a new WebSocket connection."
            )
            raise FrameRefused(
                InvalidRequest(message, param="stream_id", code="websocket_stream_limit_reached"),
                lane,
            )
        if len(self._pending) >= _MAX_PENDING or (
            self._pending and self._pending_bytes + create.size > limit
        ):
            message = (
                "Too much waits on this WebSocket connection. Send more when a response has ended."
            )
            refusal = InvalidRequest(message, code="websocket_queue_full")
            raise FrameRefused(refusal, lane)

    def _on_create_done(self, task: asyncio.Task[None], size: int) -> None:
        self._pending.discard(task)
        if not self._pending:
            self._idle.set()
        self._pending_bytes -= size

    # --- out ---

    async def _run(self, create: CreateFrame, previous: asyncio.Task[None] | None) -> None:
        """One create, when the one before it in its lane has ended."""
        if previous is not None:
            await asyncio.wait({previous})
        async with self._running_slots:
            try:
                await self._respond(create)
            except WebSocketDisconnect:
                logger.info("socket_gone")  # who reads has noticed, or will
            except Exception as error:  # noqa: BLE001  (told apart there)
                await self._report(error, create.stream_id)

    async def _report(self, error: Exception, stream_id: str | None) -> None:
        """Tells the client why its create was not carried out."""
        if isinstance(error, ApiError):
            reported = error
        elif isinstance(error, DATABASE_UNAVAILABLE):
            logger.warning("database_away", error=str(error).strip())
            reported = Unavailable()
        else:
            logger.error("socket_create_broke", exc_info=error)
            reported = ApiError("The server had an error while processing your request.")
        with suppress(WebSocketDisconnect):
            await self._send_error(reported, stream_id)
        if isinstance(reported, Unauthenticated):
            self._key_revoked.set()

    async def _respond(self, create: CreateFrame) -> None:
        project = await self._state.keys.find_project(self._key)
        if project is None:
            raise Unauthenticated("Incorrect API key provided.")
        creating = asyncio.create_task(self._create(create, project))
        try:
            accepted = await asyncio.shield(creating)
        except asyncio.CancelledError:
            creating.add_done_callback(self._cancel_if_created)
            raise
        await self._stream_events(create, accepted)

    async def _create(self, create: CreateFrame, project: UUID) -> AcceptedResponse:
        headers = {"content-length": str(create.size)}
        if traceparent := self._socket.headers.get("traceparent"):
            headers["traceparent"] = traceparent
        return await self._state.create_response.create(
            project, create.body, headers, unstored_ids=self._unstored_ids, generate=create.generate
        )

    async def _stream_events(self, create: CreateFrame, accepted: AcceptedResponse) -> None:
        """Shows the response's events to their end; if that cannot be, the response is cancelled."""
        if not accepted.request.store:
            self._track_unstored(accepted.id)
        finished = False
        try:
            async with aclosing(
                obfuscate_if_requested(
                    self._state.event_reader.follow(accepted.id, -1, background=False),
                    accepted.request,
                )
            ) as blocks:
                async for block in blocks:
                    finished = block == DONE
                    for event in () if finished else iter_frames(block):
                        await self._socket.send_text(event_frame(event, create.stream_id))
        finally:
            if not finished:
                self._state.cancel_abandoned(accepted.id)
        if not finished:
            raise ApiError(f"The stream of the response '{response_id(accepted.id)}' broke off.")
        if not accepted.request.store:
            await self._set_retention(
                [accepted.id], timedelta(seconds=max(0.0, self._deadline - time.monotonic()))
            )

    def _cancel_if_created(self, creating: asyncio.Task[AcceptedResponse]) -> None:
        """The client left while its create was being stored."""
        if not creating.cancelled() and creating.exception() is None:
            self._state.cancel_abandoned(creating.result().id)

    async def _send_error(self, error: ApiError, stream_id: str | None) -> None:
        """Raises WebSocketDisconnect when there is nobody to tell."""
        await self._socket.send_text(error_frame(error, stream_id))

    # --- memory ---

    def _track_unstored(self, unstored_id: UUID) -> None:
        self._unstored_ids[unstored_id] = None
        if len(self._unstored_ids) > _MAX_UNSTORED_IDS:
            self._unstored_ids.popitem(last=False)

    async def _set_retention(self, ids: list[UUID], retention: timedelta) -> None:
        """Sets how long unstored responses are kept from now on. Should Postgres be away, they are kept as all unstored ones are."""
        if ids:
            try:
                await change(
                    self._state.pool, statements.EXTEND_UNSTORED, {"ids": ids, "kept": retention}
                )
            except DATABASE_UNAVAILABLE as error:
                logger.warning("socket_memory_unclear", error=str(error).strip())


async def _wait_for_first(
    reading: asyncio.Task[None], *events: asyncio.Event, within: float | None = None
) -> bool:
    """Waits for the first of these, at most `within` seconds; False when it is the client's leave."""
    waiting = {asyncio.create_task(event.wait()) for event in events}
    try:
        await asyncio.wait({reading, *waiting}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        return not reading.done()
    finally:
        for wait in waiting:
            wait.cancel()


def _connection_limit_reached(state: AppState) -> InvalidRequest:
    minutes = round(state.settings.web.socket_time.total_seconds() / 60)
    message = f"Responses websocket connection limit reached ({minutes} minutes). Create a new websocket connection to continue."
    return InvalidRequest(message, code="websocket_connection_limit_reached")
