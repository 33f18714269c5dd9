"""`GET /v1/responses` with an upgrade: the handshake of a WebSocket (docs/websocket.md). What it is refused is told in HTTP, in the one envelope."""

import structlog
from fastapi import APIRouter
from starlette.websockets import WebSocket

from models.db.database import DATABASE_UNAVAILABLE
from models.errors import ApiError, Unavailable
from web.http.auth import authenticate, read_api_key
from web.http.errors import error_response, unknown_url
from web.state import AppState
from web.websocket.session import SocketSession

logger = structlog.get_logger()

router = APIRouter(prefix="/v1/responses")


@router.websocket("")
async def responses(socket: WebSocket) -> None:
    """Creates as frames in, events as frames out."""
    state: AppState = socket.app.state.app_state
    try:
        await _require_key(socket)
        if state.stopping:
            raise Unavailable("The server is stopping. Please retry.")
        if state.open_sockets >= state.settings.web.sockets:
            raise Unavailable("This server holds as many WebSockets as it may. Please retry.")
    except ApiError as error:
        await socket.send_denial_response(error_response(error))
        return
    state.open_sockets += 1
    try:
        await socket.accept()
        await SocketSession(socket, state, read_api_key(socket)).serve()
    finally:
        state.open_sockets -= 1


async def unmatched_path(socket: WebSocket) -> None:
    """No WebSocket of ours; only told to those with a key, as over HTTP (design §8)."""
    try:
        await _require_key(socket)
        raise unknown_url(socket)
    except ApiError as error:
        await socket.send_denial_response(error_response(error))


async def _require_key(socket: WebSocket) -> None:
    """Raises Unauthenticated, or Unavailable while Postgres is away."""
    try:
        await authenticate(socket)
    except DATABASE_UNAVAILABLE as error:
        logger.warning("database_away", error=str(error).strip())
        raise Unavailable from error
