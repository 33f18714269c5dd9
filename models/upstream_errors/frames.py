"""Finds the error in JSON or text that is no answer: each vendor has frames of its own."""

import contextlib
import html
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from models.upstream_errors.words import (
    BAIDU,
    MINIMAX,
    ZHIPU,
    status_number,
    status_of_names,
    status_of_words,
)


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """What an error's body, or an error inside a stream, says."""

    message: str = ""
    """The upstream's words; empty if there are none."""
    codes: tuple[str, ...] = ()
    """Its codes, types and names, the finest first."""
    status: int = 0
    """The HTTP status that it names, or that its names or words mean; 0: unknown."""
    retry_after: int | None = None
    """Seconds to wait, if it names them."""
    param: str | None = None


_Json = dict[str, Any]

_MESSAGE_KEYS = (
    "message", "msg", "error_msg", "error_message", "errorMessage", "err_msg", "status_msg",
    "Message", "Msg", "detail", "error_description", "reason", "title", "description", "text",
)  # fmt: skip
"""Where the words are. The first one counts."""
_CODE_KEYS = (
    "code", "error_code", "errorCode", "err_code", "status_code", "type", "error_type", "__type",
    "Code", "status", "name", "reason",
)  # fmt: skip
_STATUS_KEYS = (
    "code", "status", "status_code", "statusCode", "http_status", "http_code", "httpStatus",
    "http_status_code", "error_code", "errorCode", "err_code",
)  # fmt: skip
_WAIT_KEYS = (
    "retry_after", "retryAfter", "retry-after", "retry_after_seconds", "retryDelay",
    "estimated_time",
)  # fmt: skip
"""The last one is Hugging Face's, while it loads a model."""
_FINE = frozenset(("", "0", "200", "20000", "ok", "success", "succeeded", "none", "null", "normal"))
"""Values of codes, in lower case, that report no error."""
_FAILED = frozenset(("error", "failed", "fail", "failure"))
_OF_ANSWERS = frozenset(("choices", "usage", "delta", "data", "output", "model", "object", "id"))
"""Fields of answers: beside one of them a bare `message` is no error."""
_ERROR_KEYS = ("last_error", "lastError", "ErrorMsg", "Error")
_WRAPPERS = ("response", "Response", "ResponseMetadata", "result", "output")
"""Objects with an error inside: Tencent's, Volcengine's, the Responses API's."""
_MAX_ITEMS = 5
"""Items of a list of errors that are shown."""
_MAX_TITLE = 200
_TOO_DEEP = ErrorReport(message="its error is nested too deeply")
_MAX_DEPTH = 4
_LONGEST_WAIT = 10**6

_TAGS = re.compile(
    r"<(?:script|style)\b.*?</(?:script|style)\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE
)
_HTML = re.compile(
    r"\s*<(?:!--|!doctype\s+html|(?:html|head|body|title|h1|p|center)\b)", re.IGNORECASE
)
_TITLE = re.compile(r"<(title|h1|h2)\b[^>]*>(.*?)</\1\s*>", re.DOTALL | re.IGNORECASE)
_PREFIX = re.compile(
    r"\A\s*(?:\[(?:error|exception)\]\s*:?|(?:error|exception)\s*:)\s*(?=\S)", re.IGNORECASE
)
"""Before an error's words or its JSON."""
_SEARCHED_CHARACTERS = 4000
"""Characters of a web page in which its title is searched."""


def reported_error(raw: Any) -> ErrorReport | None:
    """The error that JSON reports which is, or may be, no answer of a model; None if it reports
    none."""
    if isinstance(raw, list):
        raw = next((each for each in raw if isinstance(each, dict)), None)
    if not isinstance(raw, dict):
        return None
    try:
        report = _certain(raw)
        if report is None and not isinstance(raw.get("choices"), list):
            report = _likely(raw)
    except RecursionError:
        return _TOO_DEEP
    return report


def report_of(error: Any) -> ErrorReport:
    """The report for what stands in the place of an error: an object, a text, anything."""
    try:
        return _of_any(error)
    except RecursionError:
        return _TOO_DEEP


def _of_any(error: Any) -> ErrorReport:
    if isinstance(error, dict):
        return _certain(error) or _likely(error) or _of_object(error)
    if isinstance(error, list):
        return _of_list(error)
    return _with_status(ErrorReport(message=_text(error)))


def report_of_text(text: str) -> ErrorReport:
    """The report for a text or a web page in the place of JSON."""
    text = _PREFIX.sub("", text)
    if text.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            return report_of(json.loads(text))
    if page_title(text) is None:
        return _with_status(ErrorReport(message=" ".join(text.split())))
    return report_of_page(text)


def report_of_page(text: str) -> ErrorReport:
    """The report for a web page, or the beginning of one. Its title often names a status."""
    page = page_title(text) or ""
    words = f"a web page (HTML): {page}" if page else "a web page (HTML)"
    number = re.match(r"(?:error )?([45]\d\d)\b", page, re.IGNORECASE)
    report = ErrorReport(message=words, status=int(number[1]) if number else 0)
    return _with_status(report)


def page_title(text: str) -> str | None:
    """The title of a web page, or the beginning of its text; None if the text is no web page."""
    text = text[:_SEARCHED_CHARACTERS]
    if not _HTML.match(text):
        return None
    title = _TITLE.search(text)
    words = _TAGS.sub(" ", title[2] if title else text)
    return " ".join(html.unescape(words).split())[:_MAX_TITLE]


def _certain(raw: _Json) -> ErrorReport | None:
    """The error in frames that are one also beside an answer."""
    base = raw.get("base_resp")
    if isinstance(base, dict) and not _is_fine(base.get("status_code")):
        return _of_numbers(base, "status_code", MINIMAX)
    if report := _in_error_field(raw):
        return report
    if raw.get("choices"):
        return None
    errors = raw.get("errors")
    if errors and raw.get("success") is not True:
        report = _of_list(errors if isinstance(errors, list) else [errors])
        status = report.status or _status(raw)
        return _with_status(replace(report, message=report.message or _message(raw), status=status))
    if "error_code" in raw and not _is_fine(raw["error_code"]):
        return _of_numbers(raw, "error_code", BAIDU)
    if any(_text(raw.get(key)) for key in ("error_msg", "error_message", "errorMessage")):
        return _of_object(raw)
    return None


def _in_error_field(raw: _Json) -> ErrorReport | None:
    error = raw.get("error")
    if not error or error is False:
        return None
    if isinstance(error, dict):
        if not _has_fault(error):
            return None
        inner = _unwrapped(error)
        if not _message(inner):
            inner = {**inner, **(_inner_error(inner) or {})}
        report = _of_object({**{k: raw[k] for k in raw if k not in ("error", "message")}, **inner})
        return replace(report, message=report.message or _message(raw))
    if isinstance(error, list):
        return _of_list(error)
    words = _text(error) if isinstance(error, str) else ""
    report = _of_object({**raw, "error": None})
    if not words:
        return report
    detail = report.message if report.message != words else ""
    if status_of_names([words]) and detail:  # {"error": "not_found", "message": …}
        codes = (words, *report.codes)
        status = report.status or status_of_names(codes)
        return replace(report, codes=codes, status=status)
    both = f"{words}: {detail}" if detail else words
    status = report.status or status_of_words(both)
    return replace(report, message=both, status=status)


def _unwrapped(error: _Json) -> _Json:
    """The innermost of nested error objects."""
    for _ in range(_MAX_DEPTH):
        inner = error.get("error")
        if not isinstance(inner, dict) or not inner:
            break
        error = {**{k: v for k, v in error.items() if k not in ("error", "message")}, **inner}
    return error


def _likely(raw: _Json) -> ErrorReport | None:
    """The error in JSON without choices, if its fields are those of an error."""
    detail = raw.get("detail")
    if detail and raw.get("success") is not True:
        report = _of_detail(raw, detail)
        if report.message:
            return report
    if (inner := _inner_error(raw)) is not None:
        return _of_object({**{k: v for k, v in raw.items() if not isinstance(v, dict)}, **inner})
    names = [_text(raw.get(key)) for key in ("object", "type", "__type")]
    if (
        raw.get("success") in (False, "false", "False")
        or _text(raw.get("status")).lower() in _FAILED
        or any(name.lower().endswith(("error", "exception")) for name in names)
        or any(status_number(raw.get(key)) for key in _STATUS_KEYS)
    ):
        return _of_object(raw)
    return _bare(raw)


def _inner_error(raw: _Json) -> _Json | None:
    """The error in an object of another name than `error`: Coze's `last_error`, an exception of
    Amazon with its name as the key, and errors inside of a wrapper."""
    holders = [raw, *(raw[key] for key in _WRAPPERS if isinstance(raw.get(key), dict))]
    for holder in holders:
        for key in (*_ERROR_KEYS, *(() if holder is raw else ("error",))):
            if _has_fault(inner := holder.get(key)):
                return inner
    names = (key for key in raw if key.lower().endswith(("exception", "error")))
    return next(({"name": key, **raw[key]} for key in names if _has_fault(raw[key])), None)


def _has_fault(error: Any) -> TypeGuard[_Json]:
    return isinstance(error, dict) and not all(map(_is_fine, error.values()))


def _bare(raw: _Json) -> ErrorReport | None:
    """The error in an object with a message and a code, or with hardly more than a message."""
    if raw.get("success") is True or not any(
        _text(raw.get(k)) for k in ("message", "msg", "Message")
    ):
        return None
    codes = [raw[key] for key in ("code", "Code", "status_code", "err_code") if key in raw]
    if codes:
        return None if all(map(_is_fine, codes)) else _of_object(raw)
    is_answer = not _OF_ANSWERS.isdisjoint(raw) or raw.get("type") or raw.get("event")
    return None if is_answer or _is_fine(_message(raw)) else _of_object(raw)


def _of_object(fields: _Json) -> ErrorReport:
    codes = tuple(
        code
        for key in _CODE_KEYS
        if (code := _name(fields.get(key))) and code.lower() not in _FAILED
    )
    report = ErrorReport(
        message=_with_provider(_message(fields), fields.get("metadata")),
        codes=tuple(dict.fromkeys(codes)),
        status=_status(fields),
        retry_after=_wait(fields),
        param=_text(fields.get("param")) or None,
    )
    return _with_status(report)


def _with_provider(message: str, metadata: Any) -> str:
    """OpenRouter's message says little: the words of the provider are beside it."""
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    words = report_of_text(raw).message if isinstance(raw, str) and raw.strip() else ""
    return f"{message}: {words}" if message and words else message or words


def _of_numbers(fields: _Json, key: str, numbers: Mapping[str, int]) -> ErrorReport:
    """The report of a vendor with numbers of its own."""
    report = _of_object({name: value for name, value in fields.items() if name != key})
    number = str(fields.get(key)).lower()
    status = numbers.get(number) or report.status or status_number(fields.get(key))
    return replace(report, codes=(number, *report.codes), status=status)


def _of_list(errors: Iterable[Any]) -> ErrorReport:
    reports = [_of_any(error) for error in list(errors)[:_MAX_ITEMS]]
    messages = dict.fromkeys(report.message for report in reports if report.message)
    codes = dict.fromkeys(code for report in reports for code in report.codes)
    report = ErrorReport(
        message="; ".join(messages),
        codes=tuple(codes),
        status=next((each.status for each in reports if each.status), 0),
        retry_after=next((each.retry_after for each in reports if each.retry_after), None),
    )
    return _with_status(report)


def _of_detail(raw: _Json, detail: Any) -> ErrorReport:
    """FastAPI's: a text, an object, or a list of what is wrong with the request's fields."""
    if isinstance(detail, list):
        faults = [fault for fault in detail[:_MAX_ITEMS] if isinstance(fault, dict)]
        places = ["; ".join(map(_fault, faults))] if faults else [_text(detail)]
        is_request = any("loc" in fault for fault in faults)
        report = _of_object({**raw, "detail": None, "message": places[0]})
        return replace(report, status=422) if is_request and not report.status else report
    if isinstance(detail, dict):
        outer = {key: value for key, value in raw.items() if key != "detail"}
        return _certain(detail) or _of_object({**outer, **detail})
    return _of_object({**raw, "message": _text(detail)})


def _fault(fault: _Json) -> str:
    place = ".".join(map(str, fault["loc"])) if isinstance(fault.get("loc"), list) else ""
    message = _message(fault)
    return f"{place}: {message}" if place and message else message or place


def _with_status(report: ErrorReport) -> ErrorReport:
    """With the status that follows from the names, or from the words if these say nothing."""
    if report.status:
        return report
    status = status_of_names(report.codes)
    if not status:
        status = next((ZHIPU[code] for code in report.codes if code in ZHIPU), 0)
    if not status:
        status = status_of_words(report.message)
    return replace(report, status=status)


def _status(fields: _Json) -> int:
    return next((n for key in _STATUS_KEYS if (n := status_number(fields.get(key)))), 0)


def _message(fields: _Json) -> str:
    return next((text for key in _MESSAGE_KEYS if (text := _text(fields.get(key)))), "")


def _text(raw: Any) -> str:
    """The text of a string, a number, or a list of these."""
    if isinstance(raw, str):
        return raw.strip()
    if isinstance(raw, list):
        return " ".join(filter(None, map(_text, raw[:_MAX_ITEMS])))
    return str(raw) if type(raw) in (int, float) else ""


def _name(raw: Any) -> str:
    return raw.strip() if isinstance(raw, str) else str(raw) if type(raw) is int else ""


def _is_fine(code: Any) -> bool:
    """Whether a code, or any other field, says that there is no error."""
    if code is None or code is True or code in ([], {}):
        return True
    return _name(code).lower() in _FINE if isinstance(code, str | int) else False


def _wait(fields: _Json) -> int | None:
    """The seconds to wait that an error names, rounded up."""
    for holder in _holders(fields):
        for key in _WAIT_KEYS:
            if (seconds := _seconds(holder.get(key))) is not None:
                return seconds
        if (milliseconds := _seconds(holder.get("retry_after_ms"))) is not None:
            return max(1, math.ceil(milliseconds / 1000))
    return None


def _holders(fields: _Json) -> Iterator[_Json]:
    yield fields
    for key in ("metadata", "details", "parameters"):
        inner = fields.get(key)
        for each in inner if isinstance(inner, list) else [inner]:
            if isinstance(each, dict):
                yield each


def _seconds(raw: Any) -> int | None:
    if isinstance(raw, str):
        number = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s?s?", raw.strip())
        raw = float(number[1]) if number else None
    if isinstance(raw, int | float) and 0 <= raw <= _LONGEST_WAIT and raw is not True:
        return max(1, math.ceil(raw))
    return None
