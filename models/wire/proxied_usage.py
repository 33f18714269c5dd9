"""The kinds of usage, and the usage in the bytes of an upstream's answer that passes unchanged."""

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from models.wire.token_counts import MAX_TOKEN_COUNT, read_counts

USAGE_PIECE = 8 * 1024
"""Bytes of the end of an answer, and of the beginning of a JSON answer, in which its usage is
looked for."""
_FIELD = '"usage"'
MAX_COUNT = MAX_TOKEN_COUNT
"""The largest count of one request: a sum of a thousand still fits into a bigint."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """What a call has used, as its upstream says."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    seconds: int = 0
    """of audio"""


NO_TOKENS = TokenUsage(0, 0, 0, 0)


def find_usage(piece: bytes) -> TokenUsage | None:
    """The last usage in a piece of a body, JSON or a stream, that counts something; else the last
    one; None if there is none."""
    text = piece.decode(errors="replace")
    last: TokenUsage | None = None
    at = text.rfind(_FIELD)
    while at >= 0:
        if (counts := _object_behind(text, at + len(_FIELD))) is not None:
            usage = _usage(counts)
            if usage != NO_TOKENS:
                return usage
            last = last or usage
        at = text.rfind(_FIELD, 0, at)
    return last


def usage_in(answer: Any) -> TokenUsage | None:
    """The usage in a JSON answer that was parsed; None if there is none."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    return _usage(usage) if isinstance(usage, dict) else None


def _object_behind(text: str, at: int) -> dict[str, Any] | None:
    rest = text[at:].lstrip()
    if not rest.startswith(":"):
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(rest[1:].lstrip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _usage(usage: dict[str, Any]) -> TokenUsage:
    """Chat completions and embeddings count `prompt_tokens`, images and transcriptions
    `input_tokens`; some rerankers count only `total_tokens`."""
    seconds = _seconds(usage.get("seconds"))
    counts = read_counts(usage)
    if counts is None:
        return TokenUsage(0, 0, 0, 0, seconds)
    resolved = counts.resolved()
    if resolved is None:
        return TokenUsage(counts.input or counts.total or 0, 0, counts.output or 0, 0, seconds)
    return TokenUsage(resolved.input, resolved.cached, resolved.output, resolved.reasoning, seconds)


def _seconds(raw: object) -> int:
    """Whole seconds, of which a begun one counts."""
    if type(raw) is int or type(raw) is float:
        return bounded_count(raw)
    return 0


def bounded_count(value: float) -> int:
    """A count as it is stored: 0 for what is no number or below, at most `MAX_COUNT`."""
    bounded = min(max(value, 0), MAX_COUNT)
    return 0 if math.isnan(bounded) else math.ceil(bounded)


class UsageKind(StrEnum):
    """What kind of work usage is, by the last part of its path under /v1/organization/usage
    (docs/projects.md)."""

    COMPLETIONS = "completions"
    """Text of a model, and whatever has no kind of its own."""
    EMBEDDINGS = "embeddings"
    MODERATIONS = "moderations"
    IMAGES = "images"
    AUDIO_SPEECHES = "audio_speeches"
    AUDIO_TRANSCRIPTIONS = "audio_transcriptions"
    CODE = "code_interpreter_sessions"
    """Sessions of containers; `units` are milliseconds of their CPU."""
