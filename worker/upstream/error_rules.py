"""What an upstream's error means for a response: whether it is passing, its code, and the status
and code for a foreground client (docs/errors.md); and the failures for errors that an upstream
reports inside a stream, or in a body, that began with HTTP 200.

The rules hold for error responses (failures.py) too. The HTTP status decides, or the status that
the error names: many servers write `server_error` under every error, and clients repeat a request
that failed with this code without end.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from models.config.upstream_access import (
    CREDENTIAL_STATUSES,
    credential_message,
    excerpt,
    without_secrets,
)
from models.errors import INSUFFICIENT_QUOTA, UpstreamFailed
from models.upstream_errors.frames import (
    ErrorReport,
    page_title,
    report_of,
    report_of_page,
    report_of_text,
    reported_error,
)
from models.upstream_errors.words import PAYMENT_REQUIRED, is_overflow, is_refused, is_unknown_model
from models.wire.json_input import clean_text

FORWARDED_STATUSES = frozenset({400, 404, 408, 413, 422, 429})
"""Statuses that a foreground client gets unchanged (docs/errors.md)."""

_SERVER_ERROR, _RATE_LIMIT, _INVALID_PROMPT = (
    "server_error",
    "rate_limit_exceeded",
    "invalid_prompt",
)
_ERROR_CODES = frozenset(
    (
        INSUFFICIENT_QUOTA,
        _SERVER_ERROR,
        _RATE_LIMIT,
        _INVALID_PROMPT,
        "data_residency_mismatch",
        "bio_policy",
        "misalignment_policy_violation",
        "vector_store_timeout",
        "invalid_image",
        "invalid_image_format",
        "invalid_base64_image",
        "invalid_image_url",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_content_policy_violation",
        "invalid_image_mode",
        "image_file_too_large",
        "unsupported_image_media_type",
        "empty_image_file",
        "failed_to_download_image",
        "image_file_not_found",
    )
)
"""The values of a failed response's `error.code` that OpenAI's SDK or Codex knows."""

_SYNONYMS = {
    "invalid_base64": "invalid_base64_image",
    "billing_hard_limit_reached": INSUFFICIENT_QUOTA,
    "billing_not_active": INSUFFICIENT_QUOTA,
}
"""Codes of error responses -> the code for the same error of a failed response."""
_PASSING_CODES = frozenset({_SERVER_ERROR, _RATE_LIMIT, "vector_store_timeout"})
"""Codes after which clients repeat the request."""
_PASSING_STATUSES = frozenset({408, 425})
"""Statuses below 500 after which the same request may succeed, besides 429."""
_OPERATOR_STATUSES = CREDENTIAL_STATUSES | {407}
_FIRST_REFUSAL, _FIRST_SERVER_ERROR, _LAST_SERVER_ERROR = 400, 500, 599
_OVERLOAD_STATUSES = frozenset({503, 529})
"""Server errors that are never about the request: the upstream says that it has too much to do."""
_BAD_REQUEST, _TOO_MANY_REQUESTS, _BAD_GATEWAY = 400, 429, 502


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an error means."""

    code: str
    """`error.code` of the response"""
    status: int
    """for a foreground client"""
    envelope_code: str | None = None
    """beside the status"""
    is_temporary: bool = False
    may_be_request: bool = False
    """a server error whose cause may be the request: UpstreamFailed"""


def verdict(status: int, codes: Collection[str]) -> Verdict:
    """What an error with this status and these codes means. `status`: 0 if nothing is known."""
    known = known_code(codes)
    if status in _OPERATOR_STATUSES:
        return Verdict(_SERVER_ERROR, _BAD_GATEWAY)
    if status == PAYMENT_REQUIRED or known == INSUFFICIENT_QUOTA:
        return Verdict(INSUFFICIENT_QUOTA, _TOO_MANY_REQUESTS, INSUFFICIENT_QUOTA)
    if status == _TOO_MANY_REQUESTS or (not status and known == _RATE_LIMIT):
        return Verdict(_RATE_LIMIT, _TOO_MANY_REQUESTS, _RATE_LIMIT, is_temporary=True)
    if status in _PASSING_STATUSES:
        return Verdict(_SERVER_ERROR, _forwarded(status, _BAD_GATEWAY), is_temporary=True)
    if _FIRST_REFUSAL <= status < _FIRST_SERVER_ERROR or (
        not status and known is not None and known not in _PASSING_CODES
    ):
        return _refusal(status, known)
    is_server_error = _FIRST_SERVER_ERROR <= status <= _LAST_SERVER_ERROR
    return Verdict(
        known if known is not None and not status else _SERVER_ERROR,
        _BAD_GATEWAY,
        is_temporary=is_server_error or (not status and known == _SERVER_ERROR),
        may_be_request=is_server_error and status not in _OVERLOAD_STATUSES,
    )


def _refusal(status: int, known: str | None) -> Verdict:
    """The request is refused: no other code than one that says so."""
    code = _INVALID_PROMPT if known is None or known in _PASSING_CODES else known
    return Verdict(code, _forwarded(status, _BAD_REQUEST), None if known is None else code)


def _forwarded(status: int, other: int) -> int:
    return status if status in FORWARDED_STATUSES else other


def known_code(codes: Iterable[str]) -> str | None:
    """The first of an error's codes that a failed response may have; None if there is none."""
    names = (_SYNONYMS.get(code, code) for code in codes)
    return next((name for name in names if name in _ERROR_CODES), None)


def redacted(failure: UpstreamFailed, secrets: Iterable[str]) -> UpstreamFailed:
    """The failure without this server's secrets, which some upstreams repeat in their messages."""
    failure.message = without_secrets(failure.message, secrets)
    return failure


OVERFLOW = "context_length_exceeded"
"""The code and the `reason` of a request that is too long for the model. OpenAI's SDK does not list
the code for failed responses, but OpenAI sends it, and Codex then shortens its history."""
NO_SUCH_MODEL = "model_not_found"
REFUSED = "upstream_refused"
"""The reason of a failure with a server error (5xx) whose words blame the request."""
_NOT_FOUND, _FIRST_SERVER_ERROR = 404, 500
_WITHOUT_WORDS = CREDENTIAL_STATUSES | {402, 407, 408, 425, 429}
"""Statuses that are about the account or the time, whatever the words are."""
_MODEL_STATUSES = frozenset({0, 400, 404, 422})
"""Statuses with which servers refuse a model that they do not have."""
_JSON = re.compile(r"[{\"]|\[(?!\w+\])")
"""The beginning of JSON, and not of a word in brackets."""


def failure_of_error(error: Any) -> UpstreamFailed:
    """The failure for an upstream's error object, or for any value in its place."""
    return failure_of_report(report_of(error))


def failure_in(raw: Any) -> UpstreamFailed | None:
    """The failure that a payload reports which has no output of a model; None if it reports
    none."""
    report = reported_error(raw)
    return None if report is None else failure_of_report(report)


def failure_of_text(data: bytes) -> UpstreamFailed | None:
    """The failure for a text, or a web page, in the place of JSON; None if it is no text that can
    be shown: JSON that was cut off, or bytes of any kind."""
    try:
        text = data.decode().strip().lstrip("\ufeff")
    except UnicodeDecodeError:
        return None
    words = " ".join(text.split())
    if page_title(text) is not None:
        return failure_of_page(text)
    if not words or _JSON.match(words) or not words.isprintable():
        return None
    return failure_of_report(report_of_text(text))


def failure_of_page(text: str) -> UpstreamFailed:
    """The failure for a web page in the place of an answer: often the address is that of a web
    interface. `text`: the beginning of the page."""
    report = report_of_page(text)
    page = excerpt(clean_text(report.message)).rstrip(".")
    shown = f"The upstream answered with {page}. Does its address lead to an API?"
    return failure_of_report(report, None if report.status else shown)


def failure_of_report(report: ErrorReport, message_shown: str | None = None) -> UpstreamFailed:
    """The failure for an error inside a stream. `message_shown`: in place of the one that says that
    the upstream reported an error."""
    message = clean_text(report.message) or "it gave no reason"
    shown = message_shown or f"The upstream reported an error: {excerpt(message)}"
    status = report.status
    by_words = failure_of_words(status, report, shown, model="")
    if by_words is not None:
        return by_words
    ruling = verdict(status, report.codes)
    return UpstreamFailed(
        credential_message(message) if status in CREDENTIAL_STATUSES else shown,
        code=ruling.code,
        reason="upstream_error",
        status=ruling.status,
        retry_after=report.retry_after if ruling.is_temporary else None,
        envelope_code=ruling.envelope_code,
        is_temporary=ruling.is_temporary,
        may_be_request=ruling.may_be_request and report.retry_after is None,
        is_interruption=not status and ruling.code == "server_error",
    )


def failure_of_words(
    status: int, report: ErrorReport, message: str, *, model: str
) -> UpstreamFailed | None:
    """The failure that follows from an error's words more than from its status: an unknown model, a
    request that is too long, or a server error that blames the request. None for any other.

    `status`: 0 if nothing is known. `message` is for the client.
    """
    if status in _WITHOUT_WORDS:
        return None
    if _is_about_model(status, report):
        return no_such_model(model)
    if is_overflow(report.message, report.codes):
        return overflow_failure(message)
    if (not status or status >= _FIRST_SERVER_ERROR) and is_refused(report.message):
        return _refused(message)
    return None


def _is_about_model(status: int, report: ErrorReport) -> bool:
    """Whether the upstream does not have the model. Under 404 almost any words about it say so."""
    if status not in _MODEL_STATUSES:
        return False
    if is_unknown_model(report.message, report.codes):
        return True
    words = report.message.lower()
    is_about = report.param == "model" or ("model" in words and "support" not in words)
    return status == _NOT_FOUND and is_about


def _refused(message: str) -> UpstreamFailed:
    """The failure of a request that can never succeed, although the upstream reports an error of
    its own. `message` is for the client."""
    return UpstreamFailed.of_request(message, REFUSED, envelope_code="invalid_prompt")


def no_such_model(model: str) -> UpstreamFailed:
    """The failure when no upstream serves a model of this name."""
    return UpstreamFailed.of_request(
        f"The requested model '{model}' does not exist. GET /v1/models lists those that do.",
        NO_SUCH_MODEL,
        param="model",
        envelope_code=NO_SUCH_MODEL,
    )


def overflow_failure(message: str) -> UpstreamFailed:
    """The failure of a request that is too long for the model's context. With `truncation: auto`
    the run tries again with a shorter history. `message` is for the client."""
    return UpstreamFailed.of_request(
        message, OVERFLOW, code=OVERFLOW, param="input", envelope_code=OVERFLOW
    )
