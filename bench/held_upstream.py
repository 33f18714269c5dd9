"""An upstream whose answers never end: each request gets one piece of text, and then silence."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from cli.embedded.process import free_port


@dataclass(slots=True)
class HeldUpstream:
    """What it was asked for, by model. Each response of a benchmark has a model of its own."""

    url: str = ""
    requests: dict[str, int] = field(default_factory=dict)
    """How many requests it got."""
    closed: dict[str, float] = field(default_factory=dict)
    """When (monotonic clock) the client closed the connection of the last one that was closed."""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answers with the number of the request as text, and waits until the client leaves."""
        model = (await request.json())["model"]
        number = self.requests[model] = self.requests.get(model, 0) + 1
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(f"data: {json.dumps(_chunk(str(number)))}\n\n".encode())
        try:
            await asyncio.Event().wait()  # cancelled when the connection is closed
        finally:
            self.closed[model] = time.monotonic()
        return reply


@asynccontextmanager
async def held_upstream() -> AsyncIterator[HeldUpstream]:
    """Serves any model."""
    upstream = HeldUpstream()
    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/v1/chat/completions", upstream.complete)
    runner = web.AppRunner(
        application, access_log=None, shutdown_timeout=1, handler_cancellation=True
    )
    await runner.setup()
    port = free_port()
    upstream.url = f"http://127.0.0.1:{port}/v1"
    try:
        await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
        yield upstream
    finally:
        await runner.cleanup()


def _chunk(text: str) -> dict[str, object]:
    return {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "m",
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
        ],
    }
