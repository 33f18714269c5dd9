"""`GET /v1/responses` with an upgrade: the handshake of a WebSocket (docs/websocket.md).

It is refused with an HTTP error.
"""

from fastapi import APIRouter
from starlette.websockets import WebSocket

from features.websocket.messages import Messages
from features.websocket.session import SocketSession
from features.websocket.web import WebSockets
from models.db.database import DATABASE_UNAVAILABLE
from models.errors import ApiError, ServerStopping
from models.redis.quota_counters import Demand
from web.admission import reserve_until_end
from web.http.auth import authenticate, read_api_key, require_scope
from web.http.errors import as_api_error, error_response, unknown_url
from web.http.request_record import ANY_PATH, request_record
from web.state import app_state

router = APIRouter(prefix="/v1")

_ONE_SOCKET = Demand(requests=0, open_sockets=1)


@router.websocket("/responses")
async def responses(socket: WebSocket) -> None:
    """Creates as frames in, events as frames out."""
    state = app_state(socket)
    try:
        key = await authenticate(socket)
        require_scope(key, reads=False)
        if state.stopping:
            raise ServerStopping
        record = request_record(socket)
        reserve_until_end(socket, WebSockets.in_state(state).open)
        admission = await state.quotas.admit_if_limited(key, _ONE_SOCKET)
        if admission is not None:
            record.at_end(admission.undo)
    except (ApiError, *DATABASE_UNAVAILABLE) as error:
        await _deny(socket, error)
        return
    messages: Messages = socket.scope["state"]["messages"]
    pause = state.settings.web.message_pause.total_seconds()
    messages.begin(state.budgets.bodies, record.project or "", pause)
    await socket.accept()
    session = SocketSession(socket, state, read_api_key(socket), state.body_limits_of(key))
    record.at_end(state.open_requests.add(key, session.end_for_invalid_key))
    await session.serve()


@router.websocket(f"/{ANY_PATH}")
async def unmatched_path(socket: WebSocket) -> None:
    """404 for a WebSocket elsewhere under /v1; 401 without an API key, as over HTTP."""
    try:
        await authenticate(socket)
        raise unknown_url(socket)
    except (ApiError, *DATABASE_UNAVAILABLE) as error:
        await _deny(socket, error)


async def _deny(socket: WebSocket, error: Exception) -> None:
    await socket.send_denial_response(error_response(as_api_error(error, socket.url.path)))


ROUTERS = (router,)
