"""WebSockets of projects that have moved: each is one of the other cell."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import aiohttp
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from features.websocket.messages import Messages
from models.errors import ApiError, Unavailable
from models.tasks import cancel_all
from web.http.errors import error_response
from web.state import AppState

_CLOSE = 5.0
"""Seconds in which the other cell must answer a close."""
_GOING_AWAY = 1001
_ABNORMAL = 1006
"""It is never sent: the connection has ended without a close."""
_SERVICE_RESTART = 1012


class SocketRelay:
    """One WebSocket, whose messages pass between the client and the other cell."""

    def __init__(
        self, state: AppState, project: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._state = state
        self._project = project
        self._scope = scope
        self._receive = receive
        self._send = send

    async def serve(
        self, session: aiohttp.ClientSession, url: str, headers: Iterable[tuple[str, str]]
    ) -> None:
        """Ends when one of the two sides has closed it. `headers`: of the handshake there."""
        try:
            timeout = aiohttp.ClientWSTimeout(ws_close=_CLOSE)
            other = await session.ws_connect(
                url, headers=list(headers), max_msg_size=0, timeout=timeout
            )
        except aiohttp.WSServerHandshakeError as refused:
            await self._deny(refused.status)
            return
        except (aiohttp.ClientError, OSError, TimeoutError):
            await self._deny(Unavailable.status)
            return
        async with other:
            messages: Messages = self._scope["state"]["messages"]
            pause = self._state.settings.web.message_pause.total_seconds()
            messages.begin(self._state.budgets.bodies, self._project, pause)
            await self._receive()  # that the client connects; from now on its messages are read
            await self._send({"type": "websocket.accept"})
            from_client = asyncio.create_task(self._pass_on(other))
            to_client = asyncio.create_task(self._pass_back(other))
            stopping = asyncio.create_task(self._state.stop_event.wait())
            tasks = {from_client, to_client, stopping}
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not from_client.done() or not from_client.result():
                    code = other.close_code if to_client.done() else _SERVICE_RESTART
                    await self._close(code)
            finally:
                await cancel_all(tasks)

    async def _pass_on(self, other: aiohttp.ClientWebSocketResponse) -> bool:
        """Whether the client has disconnected; else the other cell."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                await other.close(code=_GOING_AWAY)
                return True
            try:
                await _forward(message, other)
            except (aiohttp.ClientError, ConnectionError):
                return False
            finally:
                if (held := message.get("held")) is not None:
                    held.release()

    async def _pass_back(self, other: aiohttp.ClientWebSocketResponse) -> None:
        """Until the other cell, or the client, has disconnected."""
        with suppress(OSError):
            async for message in other:
                if message.type is aiohttp.WSMsgType.TEXT:
                    await self._send({"type": "websocket.send", "text": message.data})

    async def _close(self, code: int | None) -> None:
        sent = _GOING_AWAY if code in (None, _ABNORMAL) else code
        with suppress(OSError):
            await self._send({"type": "websocket.close", "code": sent})

    async def _deny(self, status: int) -> None:
        error: ApiError = Unavailable("The cell of this project does not answer.")
        if status < Unavailable.status:
            error.status = status
            error.message = "The cell of this project refuses this WebSocket."
        socket = WebSocket(self._scope, self._receive, self._send)
        await socket.send_denial_response(error_response(error))


async def _forward(message: Message, other: aiohttp.ClientWebSocketResponse) -> None:
    text, content = message.get("text"), message.get("bytes")
    if text is not None:
        await other.send_str(text)
    elif content is not None:
        await other.send_bytes(content)
