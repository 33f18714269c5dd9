"""Calls whose answer comes in one piece: at any path of an upstream (docs/batches.md), and its
count of a request's tokens, where it offers one (docs/state.md): OpenAI's, Anthropic's, vLLM's and
llama.cpp's routes."""

import asyncio
from typing import Any, Protocol

import aiohttp
import orjson
import structlog

from models.config.groups import LimitSettings
from models.config.upstream import UpstreamSettings
from models.errors import InvalidRequest, LimitReached, UpstreamFailed
from models.http_bodies import BodyTooLarge, is_uncompressed, read_bounded
from models.wire.json_input import decode_body
from worker.upstream.error_rules import redacted
from worker.upstream.failures import (
    CONNECTION_ERRORS,
    compressed,
    failure_of_connection,
    turn_limit_reached,
    unintelligible,
)
from worker.upstream.request_body import encode_body
from worker.upstream.request_sender import RequestSender, close_response

logger = structlog.get_logger()

_LARGE = 64 * 1024
"""Bytes of an answer that is parsed in a thread."""


class PlainCaller:
    """Calls one upstream."""

    def __init__(
        self, sender: RequestSender, limits: LimitSettings, secrets: tuple[str, ...]
    ) -> None:
        """`secrets`: they are removed from messages."""
        self._sender = sender
        self._limits = limits
        self._secrets = secrets

    async def call(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON in the answer to `body` at `path` behind the base URL. It can be stored
        (models/wire/json_input.py). Raises UpstreamFailed or LimitReached. Cancelling closes the
        connection."""
        try:
            async with asyncio.timeout(self._limits.turn.total_seconds()) as turn:
                data = await self._post(path, body)
        except CONNECTION_ERRORS as error:
            if turn.expired():
                raise turn_limit_reached(self._limits) from error
            raise redacted(failure_of_connection(error), self._secrets) from error
        except UpstreamFailed as failure:
            raise redacted(failure, self._secrets) from failure.__cause__
        try:
            if len(data) < _LARGE:
                return decode_body(data)
            return await asyncio.to_thread(decode_body, data)
        except InvalidRequest as error:
            raise unintelligible() from error

    async def _post(self, path: str, body: dict[str, Any]) -> bytes:
        response = await self._sender.send(path, body)
        try:
            if not is_uncompressed(response.headers):
                raise compressed()
            return await read_bounded(response.content.iter_any(), self._limits.output)
        except BodyTooLarge:
            raise LimitReached(
                f"The upstream's answer exceeded the limit of {self._limits.output} bytes.",
                reason="output_limit",
                status=502,
            ) from None
        finally:
            await close_response(response)


_TIMEOUT = aiohttp.ClientTimeout(10.0)
_MAX_BODY = 32 * 1024 * 1024
"""Bytes of a response, which may list all tokens."""
_COUNTED_FIELDS = (
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "text",
    "reasoning",
    "parallel_tool_calls",
    "truncation",
)
"""Fields of a request that OpenAI's count accepts."""


_COUNTED_OF_MESSAGES = ("model", "messages", "system", "tools", "tool_choice", "thinking")
"""The same for Anthropic's."""


class _NoCount(Exception):
    """The upstream's response has no count."""


class _Post(Protocol):
    async def __call__(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that the upstream returns."""


async def count_upstream(
    sender: RequestSender, settings: UpstreamSettings, body: dict[str, Any]
) -> int | None:
    """Tokens of this request as the upstream counts them; None if it offers no count, or if the
    count fails."""
    count = _count_method(settings)
    if count is None:
        return None

    async def post(path: str, sent: dict[str, Any]) -> Any:
        return await _post(sender, path, sent)

    try:
        tokens = await count(post, body)
    except (
        _NoCount,
        BodyTooLarge,
        ValueError,
        TypeError,
        KeyError,
        TimeoutError,
        OSError,
        aiohttp.ClientError,
    ) as error:
        logger.warning("count_unavailable", upstream=settings.name, error=type(error).__name__)
        return None
    return tokens if type(tokens) is int and tokens >= 0 else None


def _count_method(settings: UpstreamSettings) -> Any:
    name = (
        ("none" if settings.api == "chat" else settings.api)
        if settings.count == "auto"
        else settings.count
    )
    return {
        "responses": _responses,
        "messages": _messages,
        "vllm": _vllm,
        "llama.cpp": _llama_cpp,
        "none": None,
    }[name]


async def _responses(post: _Post, body: dict[str, Any]) -> Any:
    fields = {name: body[name] for name in _COUNTED_FIELDS if name in body}
    return (await post("/responses/input_tokens", fields))["input_tokens"]


async def _messages(post: _Post, body: dict[str, Any]) -> Any:
    fields = {name: body[name] for name in _COUNTED_OF_MESSAGES if name in body}
    return (await post("/messages/count_tokens", fields))["input_tokens"]


async def _vllm(post: _Post, body: dict[str, Any]) -> Any:
    fields: dict[str, Any] = {
        name: body[name] for name in ("model", "messages", "tools") if name in body
    }
    return (await post("../tokenize", {**fields, "add_generation_prompt": True}))["count"]


async def _llama_cpp(post: _Post, body: dict[str, Any]) -> Any:
    fields: dict[str, Any] = {name: body[name] for name in ("messages", "tools") if name in body}
    prompt = (await post("../apply-template", fields))["prompt"]
    text = {"content": prompt, "add_special": True, "parse_special": True}
    return len((await post("../tokenize", text))["tokens"])


async def _post(sender: RequestSender, path: str, body: dict[str, Any]) -> Any:
    """Posts to `path` behind the base URL, once. vLLM and llama.cpp have routes beside `/v1`."""
    async with sender.session.post(
        sender.url(path), data=bytes(encode_body(body)), allow_redirects=False, timeout=_TIMEOUT
    ) as response:
        if not 200 <= response.status < 300:
            raise _NoCount
        return orjson.loads(await read_bounded(response.content.iter_any(), _MAX_BODY))
