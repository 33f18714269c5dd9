"""`python -m cli.demo_upstream`: starts the demo upstream."""

import argparse
import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cli.demo_upstream import replies
from models import logs


class Completion:
    """One completion: an ASGI application that sends it word by word, or whole after the same
    time."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._reply = replies.reply_to(body)
        self._usage = replies.usage_of(body, self._reply)
        self._is_streamed = bool(body.get("stream"))
        self._include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._word_delay = replies.WORD_DELAYS[body["model"]]
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": body["model"],
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # the request's body has been read, so the next message is the disconnect
        disconnected = asyncio.ensure_future(receive())
        try:
            if self._is_streamed:
                await self._send_stream(disconnected, send)
            elif await self._wait(
                disconnected,
                time.monotonic()
                + self._word_delay * len(self._reply.reasoning + self._reply.words),
            ):
                await as_json(self._completion_json())(scope, receive, send)
        finally:
            disconnected.cancel()

    async def _send_stream(self, disconnected: asyncio.Future[Any], send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        due = time.monotonic()
        for chunk in self._chunks():
            if not await self._wait(disconnected, due):
                return
            await send(
                {
                    "type": "http.response.body",
                    "body": b"data: " + json.dumps(chunk).encode() + b"\n\n",
                    "more_body": True,
                }
            )
            due += self._word_delay
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _wait(self, disconnected: asyncio.Future[Any], deadline: float) -> bool:
        """Waits until `deadline` (monotonic clock); returns False when the client disconnects."""
        await asyncio.wait([disconnected], timeout=max(0.0, deadline - time.monotonic()))
        return not disconnected.done()

    def _chunks(self) -> Iterator[dict[str, Any]]:
        """The chunks of the stream: one for each word or piece of a call, first and last as
        OpenAI's."""
        yield self._chunk({"role": "assistant", "content": None if self._reply.call else ""})
        for word in self._reply.reasoning:
            yield self._chunk({"reasoning": word})
        if self._reply.call:
            yield from self._call_chunks(self._reply.call)
        for word in self._reply.words:
            yield self._chunk({"content": word})
        yield self._chunk({}, self._reply.finish_reason)
        if self._include_usage:
            yield self._head | {
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": self._usage,
            }

    def _call_chunks(self, call: replies.Call) -> Iterator[dict[str, Any]]:
        function = {"name": call.name, "arguments": ""}
        yield self._chunk(
            {"tool_calls": [{"index": 0, "id": call.id, "type": "function", "function": function}]}
        )
        for piece in replies.split_words(call.arguments):
            yield self._chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._include_usage else {}
        return self._head | {"object": "chat.completion.chunk", "choices": [choice]} | usage

    def _completion_json(self) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(self._reply.words) or None,
            "refusal": None,
        }
        call = self._reply.call
        if self._reply.reasoning:
            message["reasoning"] = "".join(self._reply.reasoning)
        if call:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
            ]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": self._reply.finish_reason,
        }
        return self._head | {"object": "chat.completion", "choices": [choice], "usage": self._usage}


async def create_completion(request: Request) -> Response | Completion:
    """Starlette runs the returned object as an ASGI application.

    A Completion needs less memory than Starlette's StreamingResponse.
    """
    try:
        body = replies.parse(await request.body())
    except replies.BadRequest as error:
        return envelope(400, str(error), None)
    if body["model"] not in replies.WORD_DELAYS:
        return unknown_model(body["model"])
    return Completion(body)


async def create_embeddings(request: Request) -> Response:
    try:
        body = replies.embeddings_of(await request.body())
    except replies.BadRequest as error:
        return envelope(400, str(error), None)
    if body["model"] not in replies.WORD_DELAYS:
        return unknown_model(body["model"])
    return as_json(body)


def unknown_model(model: str) -> Response:
    return envelope(
        404,
        f"The model `{model}` does not exist; the demo has {', '.join(replies.WORD_DELAYS)}.",
        "model_not_found",
    )


async def list_models(request: Request) -> Response:
    del request
    entries = [
        {"id": name, "object": "model", "created": 0, "owned_by": "backburner-demo"}
        for name in replies.WORD_DELAYS
    ]
    return as_json({"object": "list", "data": entries})


async def not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return envelope(
        status, f"the demo upstream does not serve {request.method} {request.url.path}", None
    )


def as_json(body: dict[str, Any], status: int = 200) -> Response:
    """Escaped to ASCII: an echo may contain half a surrogate pair, which UTF-8 cannot encode."""
    return Response(json.dumps(body), status, media_type="application/json")


def envelope(status: int, message: str, code: str | None) -> Response:
    """An error in OpenAI's format."""
    return as_json(
        {
            "error": {
                "message": message,
                "type": "invalid_request_error",
                "param": None,
                "code": code,
            }
        },
        status,
    )


def application() -> Starlette:
    return Starlette(
        routes=[
            Route("/v1/chat/completions", create_completion, methods=["POST"]),
            Route("/v1/embeddings", create_embeddings, methods=["POST"]),
            Route("/v1/models", list_models),
        ],
        exception_handlers={HTTPException: not_found},
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cli.demo_upstream",
        description="An OpenAI-compatible upstream without a model.",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (%(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=8001, help="the port to listen on (%(default)s)"
    )
    options = parser.parse_args()
    logs.configure("warning", process="demo-upstream")
    logs.capture_output()
    uvicorn.run(
        application(),
        host=options.host,
        port=options.port,
        log_config=None,
        access_log=False,
        backlog=2048,
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
