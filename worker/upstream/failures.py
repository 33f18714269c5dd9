"""Errors of an upstream as failures: the end of a background response, and the status for a
foreground client (docs/errors.md)."""

import json
import re
from collections.abc import Mapping
from datetime import timedelta

import aiohttp

from models.config.dialect import PATHS
from models.config.groups import LimitSettings
from models.config.upstream_access import CREDENTIAL_STATUSES, credential_message, excerpt
from models.errors import (
    UPSTREAM_ENDED_EARLY,
    UPSTREAM_UNREACHABLE,
    LimitReached,
    UpstreamFailed,
    UpstreamNotConfigured,
    UpstreamUnreached,
)
from models.upstream_errors.frames import ErrorReport, report_of, report_of_text
from models.wire.json_input import clean_text
from worker.upstream.error_rules import NO_SUCH_MODEL, OVERFLOW, REFUSED, failure_of_words, verdict

_UPSTREAM_REASONS = frozenset(
    f"upstream_{status}" for status in (401, 402, 403, 404, 405, 407, 408, 425, 429)
)
"""Reasons that are not about the request: our credential, a wrong address, a full queue."""
NOT_CONFIGURED = "upstream_not_configured"
_REQUEST_REASONS = frozenset(
    {OVERFLOW, NO_SUCH_MODEL, REFUSED, "history_deleted", "tool_choice_violated"}
)
"""Reasons that are about the request: every upstream would refuse it."""
_NOT_FOUND_STATUSES = frozenset({404, 405})
"""Statuses of an upstream with a wrong address or API, unless the error is about the model."""
_FIRST_REFUSAL, _FIRST_SERVER_ERROR = 400, 500
_THINKING = re.compile(
    r"thinking\W{0,3}\s+block|redacted_thinking|signature|thinking.*expected|expected.*thinking",
    re.IGNORECASE,
)
_HUNG_UP = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, ConnectionResetError)
"""The upstream closed the connection before it answered, and may have read the request."""
CONNECTION_ERRORS = (
    TimeoutError,
    aiohttp.ClientError,
    UnicodeError,
    OSError,
)
"""What a call of an upstream raises when it fails."""
_PATHS = (*PATHS.values(), "/embeddings", "/rerank", "/moderations", "/completions")
"""What a message may say of the address that was called: the rest may have secrets."""


def failure_of_connection(error: Exception) -> UpstreamFailed:
    """The failure for one of CONNECTION_ERRORS."""
    if isinstance(error, aiohttp.ClientResponseError | UnicodeError):
        return unintelligible()
    return broken_off()


def failure_of_status(
    status: int, headers: Mapping[str, str], text: str, *, path: str, model: str
) -> UpstreamFailed:
    """The failure for a response with a status of 3xx, 4xx or 5xx to a request at `path`. `text`:
    the beginning of its body."""
    report = _report(text)
    words = clean_text(report.message)
    message = _message(path, status, words)
    if status >= _FIRST_REFUSAL:
        refusal = f"The upstream refused the request: {excerpt(words)}" if words else message
        by_words = failure_of_words(status, report, refusal, model=model)
        if by_words is not None:
            return by_words
    ruling = verdict(status, report.codes)
    retry_after = _retry_after(headers)
    return UpstreamFailed(
        message,
        code=ruling.code,
        reason=f"upstream_{status}",
        status=ruling.status,
        retry_after=retry_after or (report.retry_after if ruling.is_temporary else None),
        envelope_code=ruling.envelope_code,
        is_temporary=ruling.is_temporary,
        may_be_request=ruling.may_be_request and retry_after is None,
    )


def not_configured(model: str) -> UpstreamFailed:
    """The failure when no upstream that the project's own routes name for the model is configured
    for this worker."""
    refusal = UpstreamNotConfigured(model)
    return UpstreamFailed(
        refusal.message,
        code="server_error",
        reason=NOT_CONFIGURED,
        status=refusal.status,
        param=refusal.param,
        envelope_code=refusal.code,
    )


def not_offered(what: str, *, reason: str, param: str) -> UpstreamFailed:
    """The failure when no upstream does any more what the request wants: one did when it was
    accepted. `what` completes "No upstream of this model "."""
    return UpstreamFailed.of_request(
        f"No upstream of this model {what}.",
        reason,
        param=param,
        envelope_code="unsupported_parameter",
    )


def refuses_thinking(failure: UpstreamFailed) -> bool:
    """Whether an upstream with the Messages API refuses thinking that came back to it: it was made
    by another model or for another conversation, or one block of several is missing."""
    return failure.reason == "upstream_400" and _THINKING.search(failure.message) is not None


def may_succeed_elsewhere(failure: UpstreamFailed | LimitReached) -> bool:
    """Whether another upstream may accept the same request: the failure is not about the
    request."""
    if isinstance(failure, LimitReached):
        return failure.reason == "first_token"
    status = re.fullmatch(r"upstream_4\d\d", failure.reason)
    return failure.reason in _UPSTREAM_REASONS or (
        status is None and failure.reason not in _REQUEST_REASONS
    )


def is_interruption(failure: UpstreamFailed | LimitReached) -> bool:
    """Whether the upstream broke off its answer and may answer the same request (docs/adr/0014).

    A machine that loses its power in mid-answer closes no connection: it is only silent.
    """
    if isinstance(failure, LimitReached):
        return failure.reason == "token_gap"
    return failure.is_temporary or failure.is_interruption


def unreachable(error: Exception) -> UpstreamFailed:
    """The failure when no response began: nothing listens there, the server hung up, or it took
    too long to accept the connection."""
    if isinstance(error, aiohttp.ServerTimeoutError):
        return UpstreamUnreached(
            "The upstream did not answer in time.",
            reason="upstream_unreachable",
            status=504,
            is_temporary=True,
        )
    hung_up = isinstance(error, _HUNG_UP) and not isinstance(error, aiohttp.ClientConnectorError)
    failure = UpstreamFailed if hung_up else UpstreamUnreached
    return failure(
        UPSTREAM_UNREACHABLE, reason="upstream_unreachable", status=502, is_temporary=True
    )


def broken_off() -> UpstreamFailed:
    """The failure when the connection ended in the middle of the response."""
    return UpstreamFailed(
        UPSTREAM_ENDED_EARLY, reason="upstream_reset", status=502, is_temporary=True
    )


def unintelligible() -> UpstreamFailed:
    """The failure when the response is no HTTP, or cannot be read."""
    return UpstreamFailed(
        "The upstream sent something that is no HTTP answer.", reason="upstream_garbage", status=502
    )


def compressed() -> UpstreamFailed:
    """The failure when the body has a content encoding."""
    return UpstreamFailed(
        "The upstream sent a compressed stream although none was asked for.",
        reason="upstream_garbage",
    )


def turn_limit_reached(limits: LimitSettings) -> LimitReached:
    """The failure when a call takes longer than a turn may."""
    return LimitReached(
        f"The model's turn took longer than the limit of {shown_seconds(limits.turn)}.",
        reason="turn_limit",
    )


def shown_seconds(limit: timedelta) -> str:
    """A time limit as messages show it."""
    return f"{limit.total_seconds():g} s"


def _message(asked: str, status: int, words: str) -> str:
    if status < 400:
        return f"The upstream answered with an unexpected redirect (HTTP {status})."
    if status in CREDENTIAL_STATUSES:
        return credential_message(words)
    if status in _NOT_FOUND_STATUSES:
        path = next((each for each in _PATHS if asked.endswith(each)), "this path")
        not_found = (
            f"The upstream has nothing at {path} (HTTP {status}): "
            "its 'base_url' or its 'api' may be wrong."
        )
        return f"{not_found} It said: {excerpt(words)}" if words else not_found
    if not words:
        return f"The upstream answered with HTTP {status}."
    begin = (
        "The upstream refused the request"
        if status < _FIRST_SERVER_ERROR
        else f"The upstream answered with HTTP {status}"
    )
    return f"{begin}: {excerpt(words)}"


def _report(body: str) -> ErrorReport:
    """What the body says. Of a body that is neither JSON nor a text that can be shown: nothing."""
    text = body.strip().lstrip("\ufeff")
    try:
        raw = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        words = " ".join(text.split())
        is_shown = words.isprintable() and not words.startswith(("{", "[")) and "\ufffd" not in text
        return report_of_text(text) if is_shown else ErrorReport()
    return report_of(raw)


def _retry_after(headers: Mapping[str, str]) -> int | None:
    """The seconds of `Retry-After`; None without one, and for a date."""
    value = headers.get("retry-after", "")
    return max(1, int(value)) if value.isascii() and value.isdigit() and len(value) < 6 else None
