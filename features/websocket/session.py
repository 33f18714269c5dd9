"""One WebSocket: creates and steers in, events out (docs/websocket.md).

Creates of one stream run one after the other, streams run in parallel. Each create is treated as a
streamed foreground POST: if the client disconnects, its responses are cancelled. The connection
remembers only the ids of the unstored responses that it made; their data is in Postgres.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from uuid import UUID

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from features.steering.web import Steering
from features.websocket import frames
from features.websocket.socket_admission import CreateLog, SocketAdmission
from features.websocket.steering import SocketSteering
from models.db.database import (
    DATABASE_UNAVAILABLE,
    fetch_idempotent,
    retry_while_unavailable,
)
from models.db.queries.api_keys import ApiKey
from models.db.queries.retention import EXTEND_UNSTORED
from models.errors import (
    ApiError,
    IncorrectApiKey,
    InvalidRequest,
    RequestTooLarge,
    ServerStopping,
    Unauthenticated,
)
from models.ids import response_id
from models.load.budget import Reservation
from models.redis.quota_counters import Demand
from models.wire.events import DONE, iter_frames
from models.wire.json_input import BodyLimits
from web.http.auth import require_scope
from web.http.errors import as_api_error
from web.http.request_record import bind_response, request_record
from web.responses.create import AcceptedResponse, CreateOptions
from web.state import AppState
from web.stream.sse import obfuscate_if_requested

logger = structlog.get_logger()

_MAX_UNSTORED_IDS = 1000
"""Unstored responses that one connection may continue; the oldest are dropped."""

_MAX_STEERS = 64
"""Steers of one connection that are being stored."""

_CLOSED = (WebSocketDisconnect, WebSocketDisconnected)
"""The client has disconnected: an operation noticed it, or an earlier one did."""
_LAST_FRAME_SECONDS = 0.5
"""So long a client has to receive the frame that says that its key is not valid any more."""
_LASTING_REFUSALS = frozenset(range(400, 500)) - {401, 408, 429}
"""Statuses of a create that would be refused again in the same form."""
_PREVIOUS_NOT_FOUND = "previous_response_not_found"
"""Also the code for a response that is still running: it can be continued when it has ended."""
_GOING_AWAY = 1001
_POLICY_VIOLATION = 1008
_SERVICE_RESTART = 1012


class SocketSession:
    """The state of one connection while it is open."""

    def __init__(self, socket: WebSocket, state: AppState, key: str, limits: BodyLimits) -> None:
        """`key`: the API key of the handshake, which is checked again with every create. `limits`:
        those of a body at the handshake."""
        self._socket = socket
        self._state = state
        self._key = key
        self._limits = limits
        self._deadline = time.monotonic() + state.settings.web.socket_time.total_seconds()
        self._project = request_record(socket).project or ""
        self._admission = SocketAdmission(state.settings.limits.body, self._new_held())
        self._steering = SocketSteering(Steering.in_state(state).store, socket.send_text)
        self._steers: set[asyncio.Task[None]] = set()
        """Steers that are being stored."""
        self._steers_in_order = asyncio.Lock()
        self._unstored_ids: OrderedDict[UUID, None] = OrderedDict()
        self._refusal: ApiError | None = None
        """The error for every further create."""
        self._key_revoked = asyncio.Event()
        """Set when the key is not valid any more; the client has got the error."""

    async def serve(self) -> None:
        """Serves an accepted socket until the client disconnects, its time is over, or we stop."""
        reading = asyncio.create_task(self._read())
        try:
            with suppress(*_CLOSED):
                code = await self._wait_for_close(reading)
                if code is not None and not reading.done():
                    await self._socket.close(code)
        finally:
            unfinished = {reading, *self._admission.pending, *self._steers}
            for task in unfinished:
                task.cancel()
            await asyncio.wait(unfinished)
            for error in filter(
                None, (task.exception() for task in unfinished if not task.cancelled())
            ):
                logger.error("socket_task_failed", exc_info=error)
            self._state.spawn(self._set_retention(list(self._unstored_ids), timedelta(0)))

    def end_for_invalid_key(self) -> None:
        """The key of the handshake is not valid any more: the connection ends, and its responses
        are cancelled."""
        self._state.spawn(self._end_for_invalid_key())

    async def _end_for_invalid_key(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_FRAME_SECONDS):
                await self._report(IncorrectApiKey(), None)
        self._key_revoked.set()

    async def _wait_for_close(self, reading: asyncio.Task[None]) -> int | None:
        """The close code with which the connection ends; None if the client has disconnected."""
        state = self._state
        if not await _wait_for_first(
            reading, state.stop_event, self._key_revoked, within=self._deadline - time.monotonic()
        ):
            return None
        if not self._key_revoked.is_set():
            self._refusal = ServerStopping() if state.stopping else _connection_limit_reached(state)
            if not await _wait_for_first(
                reading, self._admission.idle, state.grace_expired, self._key_revoked
            ):
                return None
        if self._key_revoked.is_set():
            return _POLICY_VIOLATION
        if state.stopping:
            if not self._admission.idle.is_set():
                await self._send_error(ServerStopping(), None)
            return _SERVICE_RESTART
        await self._send_error(_connection_limit_reached(state), None)
        return _GOING_AWAY

    # --- frames from the client ---

    async def _read(self) -> None:
        """Receives frames until the client disconnects.

        It never waits for a response: the socket answers pings only while it is read.
        """
        with suppress(*_CLOSED):
            while await self._read_frame():
                pass

    async def _read_frame(self) -> bool:
        """Receives a frame, which is not kept. Returns False if the client has disconnected."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            return False
        held: Reservation = message.get("held") or self._new_held()
        log = CreateLog(request_record(self._socket))
        try:
            await self._start(message.get("text"), held, log)
        except frames.FrameRefused as refused:
            held.release()
            self._forget_refused(refused.previous, refused.error)
            log.note_error(refused.error)
            log.write(server_ended=True)
            await self._send_error(refused.error, refused.stream_id)
        return True

    def _new_held(self) -> Reservation:
        return Reservation(self._state.budgets.bodies, self._project)

    async def _start(self, text: str | None, held: Reservation, log: CreateLog) -> None:
        """Starts the create or the steer of a frame. Raises FrameRefused."""
        if text is None:
            raise frames.FrameRefused(
                InvalidRequest(
                    "Binary frames are not supported. Send JSON as text.", code="invalid_json"
                ),
                None,
            )
        raw = text.encode()
        limits = await self._read_limits()
        if len(raw) > limits.size:
            raise frames.FrameRefused(RequestTooLarge(f"{limits.size} bytes"), None)
        create = await frames.read_frame(raw, limits, held)
        if isinstance(create, frames.SteerFrame):
            self._start_steer(create)
            return
        if self._refusal is not None:
            raise frames.FrameRefused(self._refusal, create.stream_id)
        admission, stream_id = self._admission, create.stream_id
        try:
            admission.require_capacity(stream_id, create.size)
            waits = admission.may_wait(stream_id)
            if waits:
                create.keep_raw(raw, limits)
            uncounted = create.size if waits and not held.amount else 0
            stop_waiting = admission.count_waiting(uncounted)
        except ApiError as error:
            raise frames.FrameRefused(error, stream_id) from None
        task = admission.start(
            stream_id, create.size, partial(self._run, create, log, stop_waiting)
        )
        # Also of one that is cancelled before its turn.
        task.add_done_callback(lambda _: stop_waiting())
        task.add_done_callback(lambda _: held.release())
        task.add_done_callback(lambda _: log.write(server_ended=self._server_ends))

    def _start_steer(self, frame: frames.SteerFrame) -> None:
        """Stores a steer while further frames are read. Raises FrameRefused."""
        if self._refusal is not None:
            raise frames.FrameRefused(self._refusal, None)
        if len(self._steers) >= _MAX_STEERS:
            raise frames.FrameRefused(
                InvalidRequest(
                    "Too many 'response.steer' events wait on this WebSocket connection.",
                    code="too_many_pending_steers",
                ),
                None,
            )
        task = asyncio.create_task(self._steer(frame))
        self._steers.add(task)
        task.add_done_callback(self._steers.discard)
        task.add_done_callback(lambda _: frame.held.release())

    async def _steer(self, frame: frames.SteerFrame) -> None:
        try:
            async with self._steers_in_order:
                key = await self._state.keys.require(self._key)
                require_scope(key, reads=False)
                await self._state.quotas.admit_if_limited(key, Demand(bytes=frame.size))
                await self._steering.steer(frame, key)
        except _CLOSED:
            logger.info("socket_disconnected")
        except Exception as error:  # noqa: BLE001  (every error becomes a frame)
            await self._report(as_api_error(error, self._socket.url.path), None)

    @property
    def _server_ends(self) -> bool:
        """What is not complete is ended by this server, and not by the client."""
        return self._state.stopping or self._key_revoked.is_set()

    async def _read_limits(self) -> BodyLimits:
        """Those of the project's policy as it is now. If the key cannot be looked up they stay as
        they were: the create fails for the same reason when its turn comes."""
        with suppress(ApiError, *DATABASE_UNAVAILABLE):
            self._limits = self._state.body_limits_of(await self._state.keys.require(self._key))
        return self._limits

    # --- events to the client ---

    async def _run(
        self, create: frames.CreateFrame, log: CreateLog, stop_waiting: Callable[[], None]
    ) -> None:
        """Runs one create to its end."""
        stop_waiting()
        try:
            await self._respond(create, log)
        except _CLOSED:
            logger.info("socket_disconnected")  # `_read` ends too, and with it the connection
        except Exception as error:  # noqa: BLE001  (every error becomes a frame)
            reported = as_api_error(error, self._socket.url.path)
            log.note_error(reported)
            self._forget_refused(create.previous, reported)
            await self._report(reported, create.stream_id)

    async def _report(self, reported: ApiError, stream_id: str | None) -> None:
        """Sends the client the error of its create."""
        with suppress(*_CLOSED):
            await self._send_error(reported, stream_id)
        if isinstance(reported, Unauthenticated):
            self._key_revoked.set()

    async def _respond(self, create: frames.CreateFrame, log: CreateLog) -> None:
        key = await self._state.keys.require(self._key)
        require_scope(key, reads=False)
        creating = asyncio.create_task(self._create(create, key))
        try:
            accepted = await asyncio.shield(creating)
        except asyncio.CancelledError:
            creating.add_done_callback(self._cancel_if_created)
            raise
        await self._stream_response(create, accepted, log)

    async def _create(self, create: frames.CreateFrame, key: ApiKey) -> AcceptedResponse:
        traceparent = self._socket.headers.get("traceparent")
        body = await create.take_body()
        await self._state.admission.admit(body, key)
        return await self._state.create_response.create(
            key,
            body,
            {"traceparent": traceparent} if traceparent else {},
            CreateOptions(
                request_record(self._socket).id,
                generate=create.generate,
                takes_steers=True,
                unstored_ids=self._unstored_ids,
                is_socket=True,
            ),
        )

    async def _stream_response(
        self, create: frames.CreateFrame, accepted: AcceptedResponse, log: CreateLog
    ) -> None:
        """Sends the response's events to their end, and then those of each successor that a steer
        has made. Cancels what runs if that fails."""
        log.note_response(accepted.id)
        try:
            while True:
                await self._stream_one(create, accepted)
                successor = await self._steering.settle(accepted.id)
                if successor is None:
                    break
                accepted = replace(accepted, id=successor, known_events=None)
        except BaseException:
            self._cancel_abandoned(accepted)
            raise
        log.note_end()

    async def _stream_one(self, create: frames.CreateFrame, accepted: AcceptedResponse) -> None:
        """Sends all events of one response. Raises if that is not possible."""
        bind_response(accepted.id)
        self._steering.begin(accepted.id, create.stream_id)
        if not accepted.request.store:
            self._track_unstored(accepted.id)
        if not await self._send_events(create, accepted):
            if self._state.grace_expired.is_set():
                # That ends all streams; this one may end before the connection.
                raise ServerStopping
            message = f"The stream of the response '{response_id(accepted.id)}' ended early."
            raise ApiError(message)
        if not accepted.request.store:
            await self._set_retention(
                [accepted.id], timedelta(seconds=max(0.0, self._deadline - time.monotonic()))
            )

    def _cancel_abandoned(self, accepted: AcceptedResponse) -> None:
        """Cancels a response whose events are not sent any more, and a successor of it that its
        steers have made meanwhile."""
        if self._steering.was_steered(accepted.id):
            self._state.spawn(self._cancel_chain(accepted))
        else:
            self._state.cancel_abandoned(accepted)

    async def _cancel_chain(self, accepted: AcceptedResponse) -> None:
        store, running = self._state.response_store, accepted.id
        found: UUID | None = accepted.id
        while found is not None:
            running = found
            cancel = partial(store.cancel_abandoned, running, accepted.waiter)
            await retry_while_unavailable(cancel, "cancel_retry", response=response_id(running))
            # After the cancel was recorded, no successor is made.
            found = await self._steering.successor_of(running)

    async def _send_events(self, create: frames.CreateFrame, accepted: AcceptedResponse) -> bool:
        """Sends the events; returns whether the last one was sent."""
        held = Reservation(self._state.budgets.bodies, request_record(self._socket).project or "")
        events = self._state.event_reader.follow(
            accepted.id, -1, background=False, known=accepted.known_events, held=held
        )
        try:
            async with aclosing(obfuscate_if_requested(events, accepted.request)) as blocks:
                return await self._send_blocks(create, blocks)
        finally:
            held.release()

    async def _send_blocks(self, create: frames.CreateFrame, blocks: AsyncIterator[bytes]) -> bool:
        async for block in blocks:
            for event in iter_frames(block):
                if event == DONE:
                    return True
                await self._socket.send_text(frames.event_frame(event, create.stream_id))
            del block, event  # as in web/stream/sse.py
        return False

    def _cancel_if_created(self, creating: asyncio.Task[AcceptedResponse]) -> None:
        """Cancels the response if it was stored after the client disconnected."""
        if not creating.cancelled() and creating.exception() is None:
            self._state.cancel_abandoned(creating.result())

    async def _send_error(self, error: ApiError, stream_id: str | None) -> None:
        """Sends an error frame. Raises one of `_CLOSED` if the client has disconnected."""
        await self._socket.send_text(frames.error_frame(error, stream_id))

    # --- unstored responses ---

    def _track_unstored(self, unstored_id: UUID) -> None:
        self._unstored_ids[unstored_id] = None
        if len(self._unstored_ids) > _MAX_UNSTORED_IDS:
            self._unstored_ids.popitem(last=False)

    def _forget_refused(self, previous: UUID | None, error: ApiError) -> None:
        """Forgets the unstored response that a refused create continues, as Open Responses wants
        it. After a refusal that passes, the same create may be sent again."""
        if error.status not in _LASTING_REFUSALS or error.code == _PREVIOUS_NOT_FOUND:
            return
        if previous is not None and previous in self._unstored_ids:
            del self._unstored_ids[previous]
            self._state.spawn(self._set_retention([previous], timedelta(0)))

    async def _set_retention(self, ids: list[UUID], retention: timedelta) -> None:
        """Sets how long unstored responses are kept from now on.

        If Postgres is unavailable, the general retention of unstored ones applies.
        """
        if not ids:
            return
        try:
            await fetch_idempotent(
                self._state.pool, EXTEND_UNSTORED, {"ids": ids, "lifetime": retention}
            )
        except DATABASE_UNAVAILABLE as error:
            logger.warning("socket_retention_unset", error=str(error).strip())


async def _wait_for_first(
    reading: asyncio.Task[None], *events: asyncio.Event, within: float | None = None
) -> bool:
    """Waits up to `within` seconds until an event is set. Returns False if `reading` has ended."""
    waiting = {asyncio.create_task(event.wait()) for event in events}
    try:
        await asyncio.wait({reading, *waiting}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        return not reading.done()
    finally:
        for wait in waiting:
            wait.cancel()


def _connection_limit_reached(state: AppState) -> InvalidRequest:
    minutes = round(state.settings.web.socket_time.total_seconds() / 60)
    return InvalidRequest(
        f"Responses websocket connection limit reached ({minutes} minutes). "
        "Create a new websocket connection to continue.",
        code="websocket_connection_limit_reached",
    )
