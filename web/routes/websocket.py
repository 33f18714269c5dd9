"""`GET /v1/responses` with an upgrade: the handshake of a WebSocket (docs/websocket.md). What it is refused is told in HTTP, in the one envelope."""

import structlog
from fastapi import APIRouter
from starlette.websockets import WebSocket

from models.db.database import AWAY
from models.errors import ApiError, Unavailable
from web.http.auth import key_of, project_of
from web.http.errors import answer, unknown_url
from web.state import Front
from web.websocket.session import SocketSession

logger = structlog.get_logger()

router = APIRouter(prefix="/v1/responses")


@router.websocket("")
async def responses(socket: WebSocket) -> None:
    """Creates as frames in, events as frames out."""
    front: Front = socket.app.state.front
    try:
        await _require_key(socket)
        if front.stopping:
            raise Unavailable("The server is stopping. Please retry.")
        if front.sockets >= front.settings.web.sockets:
            raise Unavailable("This server holds as many WebSockets as it may. Please retry.")
    except ApiError as error:
        await socket.send_denial_response(answer(error))
        return
    front.sockets += 1
    try:
        await socket.accept()
        await SocketSession(socket, front, key_of(socket)).serve()
    finally:
        front.sockets -= 1


async def elsewhere(socket: WebSocket) -> None:
    """No WebSocket of ours; only told to those with a key, as over HTTP (design §8)."""
    try:
        await _require_key(socket)
        raise unknown_url(socket)
    except ApiError as error:
        await socket.send_denial_response(answer(error))


async def _require_key(socket: WebSocket) -> None:
    """Raises Unauthenticated, or Unavailable while Postgres is away."""
    try:
        await project_of(socket)
    except AWAY as error:
        logger.warning("database_away", error=str(error).strip())
        raise Unavailable from error
