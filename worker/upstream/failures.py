"""What an upstream's refusal becomes: the ending of a background response, and the status a foreground client sees (design §4.9)."""

import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import httpx2
import openai

from models.errors import LimitReached, UpstreamFailed, UpstreamUnreached
from models.wire.json_input import clean_text
from worker.upstream.overflow import OVERFLOW, is_overflow, overflow_failure

_FORWARDED_STATUSES = frozenset({400, 401, 403, 404, 408, 413, 422, 429})
_OVERFLOW_STATUSES = frozenset({400, 413, 422, 500})
"""Statuses with which servers refuse a request that is too long; 500 is older llama.cpp's."""
_CREDENTIAL_STATUSES = frozenset({401, 403})
"""The upstream's words about our credential are for operators, not for clients."""
_UPSTREAM_REASONS = frozenset(
    {"upstream_401", "upstream_403", "upstream_404", "upstream_405", "upstream_408", "upstream_429"}
)
"""Refusals that say nothing of the request: our credential, an address where nothing is, a queue that is full."""
NO_SUCH_MODEL = "model_not_found"
_REQUEST_REASONS = frozenset({OVERFLOW, NO_SUCH_MODEL, "history_deleted", "tool_choice_violated"})
_NOT_FOUND_STATUSES = frozenset({404, 405})
"""Where not even the address is right, and no model is named, the upstream does not speak this API."""
_MAX_MESSAGE = 500
"""Characters of an upstream's message that are shown."""
_MAX_ERROR_BODY = 64 * 1024
"""Bytes of a refusal's body that are read."""
_MIN_SECRET = 8
"""Characters from which a credential is one: local servers are given words such as `none`, which may stand in any sentence."""


class _TruncatedBody(httpx2.AsyncByteStream):
    """The first bytes of a body: nobody promises that a refusal ever ends."""

    def __init__(self, whole: httpx2.AsyncByteStream) -> None:
        self._whole = whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        room = _MAX_ERROR_BODY
        async for piece in self._whole:
            yield piece[:room]
            room -= len(piece)
            if room <= 0:
                return

    async def aclose(self) -> None:
        await self._whole.aclose()


async def sanitised(response: httpx2.Response) -> None:
    """Makes a refusal safe to be read whole, as the SDK does: a short body of plain UTF-8, whatever its headers say.

    A compressed body could unpack without end, and `charset` may name any codec of Python, also those that unpack or make no text.
    """
    if response.is_success:
        return
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _TruncatedBody(response.stream)
    for name in ("content-encoding", "content-type", "content-length"):
        response.headers.pop(name, None)


def redacted(failure: UpstreamFailed, secret: str) -> UpstreamFailed:
    """The failure without this server's credential, which some upstreams repeat in their words."""
    if len(secret) >= _MIN_SECRET and secret in failure.message:
        failure.message = failure.message.replace(secret, "…")
    return failure


def failure_of_status(error: openai.APIStatusError, model: str) -> UpstreamFailed:
    """The upstream answered with a status of 3xx, 4xx or 5xx."""
    status = error.status_code
    if status == 404 and _about_model(error):
        return no_such_model(model)
    if status in _OVERFLOW_STATUSES and is_overflow(
        _upstream_message(error),
        (word for word in (error.code, error.type) if isinstance(word, str)),
    ):
        return overflow_failure(
            _message(error, status)
            if status < 500
            else f"The upstream refused the request: {_upstream_message(error)[:_MAX_MESSAGE]}"
        )
    return UpstreamFailed(
        _message(error, status),
        code=_code(status),
        reason=f"upstream_{status}",
        status=status if status in _FORWARDED_STATUSES else 502,
        retry_after=_retry_after(error),
        envelope_code="rate_limit_exceeded" if status == 429 else None,
    )


def no_such_model(model: str) -> UpstreamFailed:
    """Nobody serves a model of this name."""
    return UpstreamFailed(
        f"The requested model '{model}' does not exist.",
        code="invalid_prompt", reason=NO_SUCH_MODEL, status=400, param="model", envelope_code="model_not_found",
    )  # fmt: skip


def no_such_tool(kind: str) -> UpstreamFailed:
    """The request was accepted for an upstream that runs such tools itself, and there is none any more."""
    return UpstreamFailed(
        f"No upstream of this model runs tools of the type '{kind}'.",
        code="invalid_prompt", reason="tool_unavailable", status=400, param="tools", envelope_code="unsupported_parameter",
    )  # fmt: skip


def may_succeed_elsewhere(failure: UpstreamFailed | LimitReached) -> bool:
    """Whether another upstream may do better with the same request: it is not the request that is at fault."""
    if isinstance(failure, LimitReached):
        return failure.reason == "first_token"
    status = re.fullmatch(r"upstream_4\d\d", failure.reason)
    return failure.reason in _UPSTREAM_REASONS or (
        status is None and failure.reason not in _REQUEST_REASONS
    )


def unreachable(error: openai.APIConnectionError) -> UpstreamFailed:
    """No answer at all: nothing listens there, it hung up before the first word, or it took too long to say it."""
    cause = error.__cause__
    behind = cause.__cause__ if cause is not None else None
    # The SDK's aiohttp transport calls a reset before the first byte a connect timeout; what aiohttp itself said stands behind that.
    hung_up = isinstance(
        behind, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError
    ) and not isinstance(behind, TimeoutError)
    if isinstance(error, openai.APITimeoutError) and not hung_up:
        return UpstreamUnreached(
            "The upstream did not answer in time.", reason="upstream_unreachable", status=504
        )
    is_unsent = isinstance(behind, aiohttp.ClientConnectorError) or not hung_up
    message = "The upstream could not be reached, or hung up before it answered."
    failure = UpstreamUnreached if is_unsent else UpstreamFailed
    return failure(message, reason="upstream_unreachable", status=502)


def broken_off() -> UpstreamFailed:
    """The connection ended in the middle."""
    return UpstreamFailed(
        "The connection to the upstream broke off.", reason="upstream_reset", status=502
    )


def unintelligible() -> UpstreamFailed:
    """What came is no HTTP, or none that can be read."""
    return UpstreamFailed(
        "The upstream sent something that is no HTTP answer.", reason="upstream_garbage", status=502
    )


def _code(status: int) -> str:
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if status in (400, 404, 413, 422) else "server_error"


def _about_model(error: openai.APIStatusError) -> bool:
    return (
        error.code == "model_not_found"
        or error.param == "model"
        or "model" in _upstream_message(error).lower()
    )


def _message(error: openai.APIStatusError, status: int) -> str:
    if status in _CREDENTIAL_STATUSES:
        return "The upstream refused this server's credential."
    if status < 400:
        return f"The upstream answered with an unexpected redirect (HTTP {status})."
    upstream_message = _upstream_message(error)
    if status in _NOT_FOUND_STATUSES:
        path = (
            "/responses" if error.request.url.path.endswith("/responses") else "/chat/completions"
        )
        not_found = f"The upstream has nothing at {path} (HTTP {status}): its 'base_url' or its 'api' may be wrong."
        return (
            f"{not_found} It said: {upstream_message[:_MAX_MESSAGE]}"
            if upstream_message
            else not_found
        )
    return (
        f"The upstream refused the request: {upstream_message[:_MAX_MESSAGE]}"
        if upstream_message and status < 500
        else f"The upstream answered with HTTP {status}."
    )


def _upstream_message(error: openai.APIStatusError) -> str:
    """The upstream's words, fit to be stored and encoded: they are as hostile as anything from outside (design §9)."""
    body: Any = error.body
    if isinstance(body, dict):
        message = (
            body.get("message")
            or body.get("detail")
            or (body.get("error") if isinstance(body.get("error"), str) else "")
        )
        return clean_text(message) if isinstance(message, str) else ""
    return ""


def _retry_after(error: openai.APIStatusError) -> int | None:
    header = error.response.headers.get("retry-after", "")
    return (
        max(1, int(header)) if header.isascii() and header.isdigit() and len(header) < 6 else None
    )
