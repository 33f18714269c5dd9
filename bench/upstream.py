"""An upstream that answers every chat completion with the same text at once."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from cli.embedded.process import free_port


@asynccontextmanager
async def upstream(text: str) -> AsyncIterator[str]:
    """Serves `text` as the answer of any model. Yields the base URL."""
    body = b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in _chunks(text))

    async def complete(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=body + b"data: [DONE]\n\n", content_type="text/event-stream")

    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    port = free_port()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        await runner.cleanup()


def _chunks(text: str) -> list[dict[str, Any]]:
    """The chunks of a streamed chat completion: the text, then the usage."""
    head = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    delta = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**head, "choices": [], "usage": usage},
    ]
