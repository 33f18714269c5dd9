"""Errors that an upstream reports inside a stream, or in a body, that began with HTTP 200."""

import re
from typing import Any

from models.config.upstream_access import CREDENTIAL_STATUSES, credential_message, excerpt
from models.errors import UpstreamFailed
from models.upstream_errors.frames import ErrorReport, report_of, report_of_text, reported_error
from models.upstream_errors.words import is_overflow, is_refused, is_unknown_model
from models.wire.json_input import clean_text
from worker.upstream.error_rules import verdict

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
    if not words or _JSON.match(words) or not words.isprintable():
        return None
    return failure_of_report(report_of_text(text))


def failure_of_report(report: ErrorReport) -> UpstreamFailed:
    """The failure for an error inside a stream."""
    message = clean_text(report.message) or "it gave no reason"
    shown = f"The upstream reported an error: {excerpt(message)}"
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
    return UpstreamFailed(
        message, code="invalid_prompt", reason=REFUSED, status=400, envelope_code="invalid_prompt"
    )


def no_such_model(model: str) -> UpstreamFailed:
    """The failure when no upstream serves a model of this name."""
    return UpstreamFailed(
        f"The requested model '{model}' does not exist.",
        code="invalid_prompt",
        reason=NO_SUCH_MODEL,
        status=400,
        param="model",
        envelope_code=NO_SUCH_MODEL,
    )


def overflow_failure(message: str) -> UpstreamFailed:
    """The failure of a request that is too long for the model's context. With `truncation: auto`
    the run tries again with a shorter history. `message` is for the client."""
    return UpstreamFailed(
        message,
        code=OVERFLOW,
        reason=OVERFLOW,
        status=400,
        param="input",
        envelope_code=OVERFLOW,
    )
