"""A proxy between a client and the product that records the client's requests."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from tests.support.api import ENDINGS, JSON

_FORWARDED_HEADERS = (
    *("authorization", "content-type", "openai-beta", "idempotency-key"),
    *("x-api-key", "anthropic-version"),
)


@dataclass(slots=True)
class RecordedExchange:
    """One request of a client, and its answer."""

    method: str
    path: str
    """The path with its query, without `/v1`."""
    body: JSON | None
    status: int = 0
    answer: JSON | None = None
    """The JSON body, or the response in a stream's last event."""
    socket: int | None = None
    """The number of the WebSocket, if this was a frame."""


@dataclass(slots=True)
class Recorder:
    """`async with recording(base_url) as recorder: … recorder.base_url … recorder.exchanges`."""

    target: str
    session: aiohttp.ClientSession
    base_url: str = ""
    exchanges: list[RecordedExchange] = field(default_factory=list)
    sockets: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Forwards one request, and its answer as it arrives."""
        if request.headers.get("upgrade", "").lower() == "websocket":
            return await self._socket(request)
        raw = await request.read()
        path = request.rel_url.path_qs.removeprefix("/v1")
        exchange = RecordedExchange(request.method, path, json.loads(raw) if raw else None)
        self.exchanges.append(exchange)
        async with self.session.request(
            request.method, f"{self.target}{path}", data=raw or None, headers=_headers(request)
        ) as answer:
            exchange.status = answer.status
            passed = web.StreamResponse(
                status=answer.status,
                headers={"content-type": answer.headers.get("content-type", "text/plain")},
            )
            await passed.prepare(request)
            received = bytearray()
            try:
                with suppress(
                    ConnectionResetError
                ):  # some clients leave as soon as they have read the last event
                    async for piece in answer.content.iter_any():
                        received += piece
                        await passed.write(piece)
                    await passed.write_eof()
            finally:
                exchange.answer = _answer(bytes(received), answer.content_type)
            return passed

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        """Forwards both directions of a WebSocket. Each frame of the client is an exchange."""
        number, self.sockets = self.sockets, self.sockets + 1
        client = web.WebSocketResponse(max_msg_size=0)
        await client.prepare(request)
        url = f"{self.target}{request.rel_url.path_qs.removeprefix('/v1')}"
        async with self.session.ws_connect(
            url, headers=_headers(request), max_msg_size=0
        ) as server:

            async def answers() -> None:
                async for frame in server:
                    self._record_event(json.loads(frame.data))
                    await client.send_str(frame.data)
                await client.close()

            answering = asyncio.create_task(answers())
            async for frame in client:
                self.exchanges.append(
                    RecordedExchange("FRAME", "/responses", json.loads(frame.data), socket=number)
                )
                await server.send_str(frame.data)
            await server.close()
            await answering
        return client

    def _record_event(self, event: JSON) -> None:
        if event["type"] in ENDINGS:
            self.exchanges[-1].status = 200
            self.exchanges[-1].answer = event["response"]
        elif event["type"] == "error":
            self.exchanges[-1].status = event.get("status", 400)
            self.exchanges[-1].answer = event


def _headers(request: web.Request) -> dict[str, str]:
    return {
        name: value for name, value in request.headers.items() if name.lower() in _FORWARDED_HEADERS
    }


def _answer(raw: bytes, content_type: str) -> JSON | None:
    if content_type == "application/json" and raw:
        parsed: JSON = json.loads(raw)
        return parsed
    if content_type != "text/event-stream" or not raw:
        return None
    datas = [
        line.removeprefix(b"data: ") for line in raw.splitlines() if line.startswith(b"data: {")
    ]
    last: JSON = json.loads(datas[-1]) if datas else {}
    ended: JSON = last.get("response", last)
    return ended


@asynccontextmanager
async def recording(target: str) -> AsyncIterator[Recorder]:
    """A recorder in front of the server at `target`, which ends in `/v1`."""
    application = web.Application(client_max_size=0)
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None), auto_decompress=True
    ) as session:
        recorder = Recorder(target, session)
        application.router.add_route("*", "/{rest:.*}", recorder.handle)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        recorder.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            yield recorder
        finally:
            await runner.cleanup()
