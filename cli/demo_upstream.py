"""A pretend model server, for a first try without any model: chat completions, streamed or whole.

`demo` echoes, `demo-slow` takes a minute, `demo-tools` calls the first function it is offered. Each answer says what it is. Asked for
JSON, they give an example of the schema; given a reasoning effort, they pretend to think.
"""

import argparse
import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

MARK = "[Backburner demo upstream]"
WORD_DELAYS = {"demo": 0.05, "demo-slow": 1.0, "demo-tools": 0.05}
"""The models, and the seconds from one word of theirs to the next."""
SLOW_WORDS = 60
MAX_ECHO = 64 * 1024
"""Characters."""

MAX_DEPTH = 8
"""Levels of an example: schemas may refer to themselves."""

EXAMPLES: dict[str, Any] = {
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


@dataclass(frozen=True)
class Call:
    """A function call."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


@dataclass(frozen=True)
class DemoReply:
    """What the model will say: words that, joined, are the text, or a call; and before it, what it thinks."""

    words: list[str]
    call: Call | None
    finish_reason: str
    reasoning: list[str] = field(default_factory=list)


class BadRequest(Exception):
    """The request cannot be answered. The message says why."""


def reply_to(body: dict[str, Any]) -> DemoReply:
    """The whole answer to a chat completion request for one of our models."""
    thoughts = (
        _split(f"{MARK} I pretend to think.")
        if body.get("reasoning_effort") not in (None, "none")
        else []
    )
    call = _call_for(body) if body["model"] == "demo-tools" else None
    if call:
        return DemoReply([], call, "tool_calls", thoughts)
    words = _split(_json_for(body) or _text_for(body))
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if isinstance(limit, int) and len(thoughts) + len(words) > limit:
        return DemoReply(words[: max(0, limit - len(thoughts))], None, "length", thoughts[:limit])
    return DemoReply(words, None, "stop", thoughts)


def _text_for(body: dict[str, Any]) -> str:
    last = body["messages"][-1]
    if body["model"] == "demo-slow":
        start = f"{MARK} I say one word a second for a minute:"
        return " ".join(
            [start, *(str(number) for number in range(1, SLOW_WORDS - len(start.split()) + 1))]
        )
    if last.get("role") == "tool":
        return f"{MARK} The tool answered: {_text_of(last)[:MAX_ECHO]}"
    if body["model"] == "demo-tools":
        return (
            f"{MARK} Offer me a function tool and I will call it. You said: {_last_user_text(body)}"
        )
    return f"{MARK} You said: {_last_user_text(body)}"


def _call_for(body: dict[str, Any]) -> Call | None:
    """A call of the first function, unless the turn is not for one."""
    functions = [
        tool["function"]
        for tool in body.get("tools") or []
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    ]
    if (
        not functions
        or body.get("tool_choice") == "none"
        or body["messages"][-1].get("role") == "tool"
    ):
        return None
    schema = functions[0].get("parameters") or {}
    arguments = {
        name: _example(wanted, _last_user_text(body))
        for name, wanted in (schema.get("properties") or {}).items()
    }
    return Call(str(functions[0].get("name")), json.dumps(arguments))


def _json_for(body: dict[str, Any]) -> str | None:
    """An example of the JSON that is wanted, if it is."""
    wanted = body.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_object":
        return json.dumps({"demo": MARK, "you_said": _last_user_text(body)})
    schema = (
        (wanted.get("json_schema") or {}).get("schema")
        if kind == "json_schema" and isinstance(wanted, dict)
        else None
    )
    return (
        json.dumps(_example(schema, _last_user_text(body), schema))
        if isinstance(schema, dict)
        else None
    )


def _example(schema: Any, text: str, root: Any = None, depth: int = 0) -> Any:
    """A value that fits a schema, as far as its types go; text where text is wanted. `root`: where references point."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return text
    if isinstance(schema.get("$ref"), str):
        return _example(_resolve_reference(root, schema["$ref"]), text, root, depth + 1)
    if isinstance(schema.get("anyOf"), list) and schema["anyOf"]:
        return _example(schema["anyOf"][-1 if depth > MAX_DEPTH // 2 else 0], text, root, depth + 1)
    if schema.get("enum"):
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if kind == "array" and isinstance(schema.get("items"), dict) and depth <= MAX_DEPTH // 2:
        return [_example(schema["items"], text, root, depth + 1)]
    if kind == "object" and isinstance(schema.get("properties"), dict):
        return {
            name: _example(wanted, text, root, depth + 1)
            for name, wanted in schema["properties"].items()
        }
    return (
        EXAMPLES.get(kind[0] if isinstance(kind, list) and kind else kind, text) if kind else text
    )


def _resolve_reference(root: Any, reference: str) -> Any:
    for step in reference.split("/")[1:]:
        root = root.get(step) if isinstance(root, dict) else None
    return root


def _last_user_text(body: dict[str, Any]) -> str:
    spoken = [_text_of(message) for message in body["messages"] if message.get("role") == "user"]
    return (spoken[-1] if spoken else "nothing")[:MAX_ECHO]


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(
            str(part.get("text", ""))
            for part in content
            if isinstance(part, dict) and part.get("type") == "text"
        )
    return str(content or "")


def _split(text: str) -> list[str]:
    """Words with the space before them, so that joining them gives the text back, its single spaces at least."""
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]


def usage_of(body: dict[str, Any], reply: DemoReply) -> dict[str, Any]:
    """A word counts as a token."""
    prompt = sum(len(_text_of(message).split()) for message in body["messages"])
    completion = len(reply.reasoning) + (
        len(reply.words) or len(reply.call.arguments.split() if reply.call else ())
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": len(reply.reasoning)},
    }


class Completion:
    """One completion under way: an ASGI application that sends it word by word, or whole after the same time."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._reply = reply_to(body)
        self._usage = usage_of(body, self._reply)
        self._is_streamed = bool(body.get("stream"))
        self._include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._word_delay = WORD_DELAYS[body["model"]]
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": body["model"],
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # the request's body has been read, so the next message says that the client is gone
        gone = asyncio.ensure_future(receive())
        try:
            if self._is_streamed:
                await self._send_stream(gone, send)
            elif await self._wait(
                gone,
                time.monotonic()
                + self._word_delay * len(self._reply.reasoning + self._reply.words),
            ):
                await as_json(self._completion_json())(scope, receive, send)
        finally:
            gone.cancel()

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
        """Wait until `due` on the monotonic clock; False as soon as the client is gone."""
        await asyncio.wait([disconnected], timeout=max(0.0, deadline - time.monotonic()))
        return not disconnected.done()

    def _chunks(self) -> Iterator[dict[str, Any]]:
        """The stream's JSON objects, one for each word or piece of a call, the first and last as OpenAI has them."""
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

    def _call_chunks(self, call: Call) -> Iterator[dict[str, Any]]:
        function = {"name": call.name, "arguments": ""}
        yield self._chunk(
            {"tool_calls": [{"index": 0, "id": call.id, "type": "function", "function": function}]}
        )
        for piece in _split(call.arguments):
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


def parse(raw: bytes) -> dict[str, Any]:
    """The request, if it has what an answer needs; BadRequest otherwise."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise BadRequest("the body is not JSON") from error
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise BadRequest("the body must be an object with a `model`")
    messages = body.get("messages")
    if (
        not isinstance(messages, list)
        or not messages
        or not all(isinstance(message, dict) for message in messages)
    ):
        raise BadRequest("`messages` must be a list of objects, and not empty")
    return body


async def create_completion(request: Request) -> Response | Completion:
    """Starlette runs whatever is returned here as an ASGI application; a Completion is a lighter one than its StreamingResponse."""
    try:
        body = parse(await request.body())
    except BadRequest as error:
        return envelope(400, str(error), None)
    if body["model"] not in WORD_DELAYS:
        return envelope(
            404,
            f"The model `{body['model']}` does not exist; the demo has {', '.join(WORD_DELAYS)}.",
            "model_not_found",
        )
    return Completion(body)


async def list_models(request: Request) -> Response:
    del request
    entries = [
        {"id": name, "object": "model", "created": 0, "owned_by": "backburner-demo"}
        for name in WORD_DELAYS
    ]
    return as_json({"object": "list", "data": entries})


async def not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return envelope(
        status, f"{request.method} {request.url.path} is not something the demo upstream does", None
    )


def as_json(body: dict[str, Any], status: int = 200) -> Response:
    """All of it escaped to ASCII: an echo may hold half a surrogate pair, which UTF-8 cannot express."""
    return Response(json.dumps(body), status, media_type="application/json")


def envelope(status: int, message: str, code: str | None) -> Response:
    """OpenAI's shape of an error."""
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
            Route("/v1/models", list_models),
        ],
        exception_handlers={HTTPException: not_found},
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cli.demo_upstream", description="A pretend OpenAI-compatible upstream."
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (%(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=8001, help="the port to listen on (%(default)s)"
    )
    options = parser.parse_args()
    uvicorn.run(
        application(),
        host=options.host,
        port=options.port,
        log_level="warning",
        access_log=False,
        backlog=2048,
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
