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

from models.db.database import AWAY
from models.db.database import request as change
from models.db.queries import statements
from models.errors import ApiError, InvalidRequest, RequestTooLarge, Unauthenticated, Unavailable
from models.ids import response_id
from models.wire.events import each_frame
from web.responses.create import Accepted
from web.state import Front
from web.stream.obfuscation import as_wanted
from web.stream.reader import DONE
from web.websocket.frames import Create, FrameRefused, error_frame, event_frame, parse_frame

logger = structlog.get_logger()

_RUNNING = 16
"""Responses that one connection may have under way, over all lanes; OpenAI's own limit."""
_LANES = 32
"""Names of lanes that one connection may use; OpenAI's own limit."""
_PENDING = 64
"""Creates of one connection that wait or run."""
_REMEMBERED = 1000
"""Unstored responses that one connection may go on from; the oldest are forgotten."""
_LARGE = 256 * 1024
"""Bytes from which a frame is decoded beside the event loop."""

_GOING_AWAY = 1001
_POLICY = 1008
_RESTART = 1012


class SocketSession:
    """What is known of one connection while it lasts."""

    def __init__(self, socket: WebSocket, front: Front, key: str) -> None:
        """`key`: the API key of the handshake, which is looked at again with every create."""
        self._socket = socket
        self._front = front
        self._key = key
        self._ends = time.monotonic() + front.settings.web.socket_time.total_seconds()
        self._room = asyncio.Semaphore(_RUNNING)
        self._tails: dict[str | None, asyncio.Task[None]] = {}
        """lane -> its last create; a lane that was used once is never forgotten"""
        self._under_way: set[asyncio.Task[None]] = set()
        self._bytes = 0
        """of the creates under way"""
        self._remembered: OrderedDict[UUID, None] = OrderedDict()
        self._refusal: ApiError | None = None
        """Why no further creates are taken."""
        self._revoked = asyncio.Event()
        """The key is no longer one; the client has been told."""
        self._quiet = asyncio.Event()
        """Nothing is under way."""
        self._quiet.set()

    async def serve(self) -> None:
        """Until the client leaves, its time is over, or the server stops. The socket is accepted."""
        reading = asyncio.create_task(self._read())
        try:
            with suppress(WebSocketDisconnect):
                code = await self._until_over(reading)
                if code is not None and not reading.done():
                    await self._socket.close(code)
        finally:
            left = {reading, *self._under_way}
            for task in left:
                task.cancel()
            await asyncio.wait(left)
            for fault in filter(None, (task.exception() for task in left if not task.cancelled())):
                logger.error("socket_broke", exc_info=fault)
            self._front.spawn(self._keep(list(self._remembered), timedelta(0)))

    # --- in ---

    async def _until_over(self, reading: asyncio.Task[None]) -> int | None:
        """Why the connection ends, as a close code; None: the client has left."""
        front = self._front
        if not await _first(
            reading, front.stopped, self._revoked, within=self._ends - time.monotonic()
        ):
            return None
        if not self._revoked.is_set():
            self._refusal = (
                Unavailable("The server is stopping. Please retry.")
                if front.stopped.is_set()
                else _time_is_over(front)
            )
            if not await _first(reading, self._quiet, front.drained, self._revoked):
                return None
        if self._revoked.is_set():
            return _POLICY
        if front.stopped.is_set():
            if not self._quiet.is_set():
                await self._tell(Unavailable("The server is stopping. Please retry."), None)
            return _RESTART
        await self._tell(_time_is_over(front), None)
        return _GOING_AWAY

    async def _read(self) -> None:
        """Takes frames until the client leaves. It never waits for a response: pings are answered by those who read."""
        with suppress(WebSocketDisconnect):
            while (message := await self._socket.receive())["type"] != "websocket.disconnect":
                try:
                    await self._take(message.get("text"))
                except FrameRefused as refused:
                    await self._tell(refused.error, refused.stream_id)

    async def _take(self, text: str | None) -> None:
        """Begins what a frame asks for. Raises FrameRefused."""
        if text is None:
            raise FrameRefused(
                InvalidRequest(
                    "Binary frames are not supported. Send JSON as text.", code="invalid_json"
                ),
                None,
            )
        raw = text.encode()
        limit = self._front.settings.limits.body
        if len(raw) > limit:
            raise FrameRefused(RequestTooLarge(limit), None)
        create = (
            await asyncio.to_thread(parse_frame, raw) if len(raw) > _LARGE else parse_frame(raw)
        )
        self._require_room(create, limit)
        task = asyncio.create_task(self._run(create, self._tails.get(create.stream_id)))
        self._tails[create.stream_id] = task
        self._under_way.add(task)
        self._quiet.clear()
        self._bytes += create.size
        task.add_done_callback(lambda done: self._ended(done, create.size))

    def _require_room(self, create: Create, limit: int) -> None:
        lane = create.stream_id
        if self._refusal is not None:
            raise FrameRefused(self._refusal, lane)
        if (
            lane is not None
            and lane not in self._tails
            and len(self._tails) - (None in self._tails) >= _LANES
        ):
            message = (
                f"This WebSocket connection has reached its maximum number of distinct stream IDs ({_LANES}). Reuse an existing stream_id or "
                "open a new WebSocket connection."
            )
            raise FrameRefused(
                InvalidRequest(message, param="stream_id", code="websocket_stream_limit_reached"),
                lane,
            )
        if len(self._under_way) >= _PENDING or (
            self._under_way and self._bytes + create.size > limit
        ):
            message = (
                "Too much waits on this WebSocket connection. Send more when a response has ended."
            )
            refusal = InvalidRequest(message, code="websocket_queue_full")
            raise FrameRefused(refusal, lane)

    def _ended(self, task: asyncio.Task[None], size: int) -> None:
        self._under_way.discard(task)
        if not self._under_way:
            self._quiet.set()
        self._bytes -= size

    # --- out ---

    async def _run(self, create: Create, before: asyncio.Task[None] | None) -> None:
        """One create, when the one before it in its lane has ended."""
        if before is not None:
            await asyncio.wait({before})
        async with self._room:
            try:
                await self._respond(create)
            except WebSocketDisconnect:
                logger.info("socket_gone")  # who reads has noticed, or will
            except Exception as error:  # noqa: BLE001  (told apart there)
                await self._report(error, create.stream_id)

    async def _report(self, error: Exception, stream_id: str | None) -> None:
        """Tells the client why its create was not carried out."""
        if isinstance(error, ApiError):
            told = error
        elif isinstance(error, AWAY):
            logger.warning("database_away", error=str(error).strip())
            told = Unavailable()
        else:
            logger.error("socket_create_broke", exc_info=error)
            told = ApiError("The server had an error while processing your request.")
        with suppress(WebSocketDisconnect):
            await self._tell(told, stream_id)
        if isinstance(told, Unauthenticated):
            self._revoked.set()

    async def _respond(self, create: Create) -> None:
        project = await self._front.keys.project_of(self._key)
        if project is None:
            raise Unauthenticated("Incorrect API key provided.")
        accepting = asyncio.create_task(self._accept(create, project))
        try:
            accepted = await asyncio.shield(accepting)
        except asyncio.CancelledError:
            accepting.add_done_callback(self._abandon)
            raise
        await self._relay(create, accepted)

    async def _accept(self, create: Create, project: UUID) -> Accepted:
        headers = {"content-length": str(create.size)}
        if traceparent := self._socket.headers.get("traceparent"):
            headers["traceparent"] = traceparent
        return await self._front.intake.accept(
            project, create.body, headers, remembered=self._remembered, generate=create.generate
        )

    async def _relay(self, create: Create, accepted: Accepted) -> None:
        """Shows the response's events to their end; if that cannot be, the response is cancelled."""
        if not accepted.request.store:
            self._remember(accepted.id)
        finished = False
        try:
            async with aclosing(
                as_wanted(
                    self._front.relay.follow(accepted.id, -1, background=False), accepted.request
                )
            ) as blocks:
                async for block in blocks:
                    finished = block == DONE
                    for event in () if finished else each_frame(block):
                        await self._socket.send_text(event_frame(event, create.stream_id))
        finally:
            if not finished:
                self._front.abandon(accepted.id)
        if not finished:
            raise ApiError(f"The stream of the response '{response_id(accepted.id)}' broke off.")
        if not accepted.request.store:
            await self._keep(
                [accepted.id], timedelta(seconds=max(0.0, self._ends - time.monotonic()))
            )

    def _abandon(self, accepting: asyncio.Task[Accepted]) -> None:
        """The client left while its create was being stored."""
        if not accepting.cancelled() and accepting.exception() is None:
            self._front.abandon(accepting.result().id)

    async def _tell(self, error: ApiError, stream_id: str | None) -> None:
        """Raises WebSocketDisconnect when there is nobody to tell."""
        await self._socket.send_text(error_frame(error, stream_id))

    # --- memory ---

    def _remember(self, made: UUID) -> None:
        self._remembered[made] = None
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)

    async def _keep(self, ids: list[UUID], kept: timedelta) -> None:
        """Sets how long unstored responses are kept from now on. Should Postgres be away, they are kept as all unstored ones are."""
        if ids:
            try:
                await change(self._front.pool, statements.REMEMBER, {"ids": ids, "kept": kept})
            except AWAY as error:
                logger.warning("socket_memory_unclear", error=str(error).strip())


async def _first(
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


def _time_is_over(front: Front) -> InvalidRequest:
    minutes = round(front.settings.web.socket_time.total_seconds() / 60)
    message = f"Responses websocket connection limit reached ({minutes} minutes). Create a new websocket connection to continue."
    return InvalidRequest(message, code="websocket_connection_limit_reached")
