"""The token counts in an upstream's `usage`, under the names and by the sums of each vendor; the
kinds of usage, and the usage in the bytes of an answer that passes unchanged.

OpenAI counts cached tokens as a part of the input, and reasoning as a part of the output. Others
count them beside it: Anthropic's `input_tokens` has no cached tokens, the `completion_tokens` of
xAI and Gemini have no reasoning. The total shows which sum was meant.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import product
from typing import Any

MAX_TOKEN_COUNT = 2**53
"""The largest count that every JSON reader represents exactly."""
COUNTED_BY = "counted_by"
"""Key in the stored usage of a response whose tokens were only counted (docs/state.md): `upstream`,
`tokenizer` or `estimate`. Clients see it as a header."""

_INPUT = (
    "prompt_tokens",
    "input_tokens",
    "promptTokens",
    "inputTokens",
    "promptTokenCount",
    "prompt_token_count",
    "input_token_count",
    "prompt_eval_count",
)
_OUTPUT = (
    "completion_tokens",
    "output_tokens",
    "completionTokens",
    "outputTokens",
    "candidatesTokenCount",
    "candidates_token_count",
    "completion_token_count",
    "output_token_count",
    "generated_token_count",
    "generated_tokens",
    "eval_count",
)
_TOTAL = ("total_tokens", "totalTokens", "totalTokenCount", "total_token_count")
_CACHED = (
    "cached_tokens",
    "num_cached_tokens",
    "cache_read_input_tokens",
    "cache_read_tokens",
    "cacheReadInputTokens",
    "prompt_cache_hit_tokens",
    "prompt_cached_tokens",
    "cached_prompt_tokens",
    "cached_input_tokens",
    "cached_prompt_text_tokens",
    "input_cached_tokens",
    "cachedContentTokenCount",
    "cached_content_token_count",
    "cachedTokens",
    "cached",
    "cache_read",
)
_CACHE_WRITE = (
    "cache_write_tokens",
    "cache_creation_input_tokens",
    "cache_creation_tokens",
    "cache_write_input_tokens",
    "cacheWriteInputTokens",
    "cacheCreationInputTokens",
)
_REASONING = (
    "reasoning_tokens",
    "num_reasoning_tokens",
    "reasoningTokens",
    "thoughtsTokenCount",
    "thoughts_token_count",
    "thoughts_tokens",
    "thinking_tokens",
    "reasoning_output_tokens",
)
_INPUT_DETAILS = (
    "prompt_tokens_details",
    "input_tokens_details",
    "prompt_token_details",
    "input_token_details",
    "prompt_details",
    "promptTokensDetails",
    "inputTokensDetails",
)
_OUTPUT_DETAILS = (
    "completion_tokens_details",
    "output_tokens_details",
    "completion_token_details",
    "output_token_details",
    "completion_details",
    "completionTokensDetails",
    "outputTokensDetails",
)
_NESTED = ("tokens", "billed_units")
"""Cohere's objects of counts."""
_RESPONSES_DETAILS = ("input_tokens_details", "output_tokens_details")
_KNOWN = {
    *(*_INPUT, *_OUTPUT, *_TOTAL, *_CACHED, *_CACHE_WRITE, *_REASONING, *_NESTED),
    *(*_INPUT_DETAILS, *_OUTPUT_DETAILS),
} - {*_RESPONSES_DETAILS}


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The counts that an upstream has sent; None: it has not sent this one."""

    input: int | None = None
    output: int | None = None
    total: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    excludes_cached: bool = False
    """The names are Anthropic's, whose input has no cached tokens."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """What else a `usage` in the Responses shape has, for clients (`unknown_counts`)."""

    def updated(self, newer: "TokenCounts") -> "TokenCounts":
        """These counts with those of a later chunk of the same answer: counts grow, so a later
        null or zero replaces nothing."""
        values = {
            each.name: getattr(newer, each.name) or getattr(self, each.name)
            for each in fields(self)
        }
        return TokenCounts(**values)

    def resolved(self) -> "ResolvedCounts | None":
        """The counts with OpenAI's meaning; None if input or output is not known."""
        known = self._with_missing()
        if known is None:
            return None
        input_tokens, output_tokens = known
        beside_input = (self.cached or 0) + (self.cache_write or 0)
        reasoning = self.reasoning or 0
        total = self.total or 0
        adds_input, adds_output = self._what_is_beside(input_tokens, output_tokens)
        input_tokens += beside_input * adds_input
        output_tokens += reasoning * adds_output
        if total > input_tokens + output_tokens:
            # Gemini's total has reasoning that it names nowhere else.
            hidden = total - input_tokens - output_tokens
            output_tokens += hidden
            reasoning = reasoning or hidden
        return ResolvedCounts(
            input_tokens,
            output_tokens,
            min(self.cached or 0, input_tokens),
            min(self.cache_write or 0, input_tokens),
            min(reasoning, output_tokens),
        )

    def _with_missing(self) -> tuple[int, int] | None:
        """Input and output; one of them may follow from the total."""
        input_tokens, output_tokens, total = self.input, self.output, self.total
        if total:
            if input_tokens is None and output_tokens is not None:
                input_tokens = max(0, total - output_tokens)
            if output_tokens is None and input_tokens is not None:
                output_tokens = max(0, total - input_tokens)
        if input_tokens is None or output_tokens is None:
            return None
        return input_tokens, output_tokens

    def _what_is_beside(self, input_tokens: int, output_tokens: int) -> tuple[bool, bool]:
        """Whether cached tokens are beside the input, and reasoning beside the output: the first
        sum that gives the total, else what the counts alone show."""
        beside_input = (self.cached or 0) + (self.cache_write or 0)
        reasoning = self.reasoning or 0
        must_add_input, must_add_output = beside_input > input_tokens, reasoning > output_tokens
        for adds_input, adds_output in product((False, True), repeat=2):
            if adds_input < must_add_input or adds_output < must_add_output:
                continue
            total = input_tokens + beside_input * adds_input + output_tokens
            if self.total and total + reasoning * adds_output == self.total:
                return adds_input, adds_output
        return must_add_input or self.excludes_cached, must_add_output


@dataclass(frozen=True, slots=True)
class ResolvedCounts:
    """Counts with OpenAI's meaning: `cached` and `cache_write` are parts of the input, `reasoning`
    is a part of the output."""

    input: int
    output: int
    cached: int
    cache_write: int
    reasoning: int


def read_counts(raw: Any) -> TokenCounts | None:
    """The counts in a `usage` of any shape; None if it has none but details."""
    if not isinstance(raw, Mapping):
        return None
    inputs, outputs = ([raw, *_objects(raw, names)] for names in (_INPUT_DETAILS, _OUTPUT_DETAILS))
    counts = TokenCounts(
        input=_first([raw], _INPUT),
        output=_first([raw], _OUTPUT),
        total=_first([raw], _TOTAL),
        cached=_largest(inputs, _CACHED),
        cache_write=_largest(inputs, _CACHE_WRITE),
        reasoning=_largest(outputs, _REASONING),
        excludes_cached="cache_read_input_tokens" in raw
        and "input_tokens" in raw
        and "prompt_tokens" not in raw,
    )
    if counts.input is counts.output is counts.total is None:
        return next(filter(None, map(read_counts, _objects(raw, _NESTED))), None)
    return counts


def unknown_counts(raw: Any) -> dict[str, Any]:
    """What a `usage` in the Responses shape has under names that are not known, also in its objects
    of details, without null."""
    if not isinstance(raw, Mapping):
        return {}
    found = {
        name: unknown_counts(value) if name in _RESPONSES_DETAILS else value
        for name, value in raw.items()
        if name not in _KNOWN
    }
    return {name: value for name, value in found.items() if value not in (None, {})}


def _objects(raw: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    return (value for name in names if isinstance(value := raw.get(name), Mapping))


def _first(objects: list[Mapping[str, Any]], names: tuple[str, ...]) -> int | None:
    """The first of these counts that is there."""
    return next(_counts(objects, names), None)


def _largest(objects: list[Mapping[str, Any]], names: tuple[str, ...]) -> int | None:
    """One count that may come under several names, of which some are 0."""
    return max(_counts(objects, names), default=None)


def _counts(objects: list[Mapping[str, Any]], names: tuple[str, ...]) -> Iterator[int]:
    for counts in objects:
        for name in names:
            if name in counts and (count := token_count(counts[name])) is not None:
                yield count


def token_count(raw: Any) -> int | None:
    """A count from a number or a string of digits; None for anything else. A negative number, or
    one above `MAX_TOKEN_COUNT`, is no count: quotas add up these."""
    if type(raw) is str and raw.isascii() and raw.isdigit() and len(raw) < 20:
        raw = int(raw)
    if (type(raw) is float and math.isfinite(raw)) or type(raw) is int:
        return int(raw) if 0 <= raw <= MAX_TOKEN_COUNT else None
    return None


def usage_json(counts: TokenCounts | None) -> dict[str, Any] | None:
    """`usage` of the Response object; None if input or output is not known, never an estimate.

    Both details objects are required, with numbers: unknown counts in them are 0, not null.
    """
    resolved = counts.resolved() if counts is not None else None
    if resolved is None:
        return None
    usage = {
        "input_tokens": resolved.input,
        "input_tokens_details": {
            "cached_tokens": resolved.cached,
            "cache_write_tokens": resolved.cache_write,
        },
        "output_tokens": resolved.output,
        "output_tokens_details": {"reasoning_tokens": resolved.reasoning},
        "total_tokens": resolved.input + resolved.output,
    }
    return _sum(usage, counts.others) if counts is not None and counts.others else usage


def as_reasoning(usage: dict[str, Any]) -> dict[str, Any]:
    """A usage in the Responses shape, with all its output counted as reasoning."""
    return {**usage, "output_tokens_details": {"reasoning_tokens": usage["output_tokens"]}}


def add_usage(so_far: dict[str, Any] | None, turn: dict[str, Any] | None) -> dict[str, Any] | None:
    """The sum of two usages in the Responses shape.

    None adds nothing: the earlier usage is kept when a later turn is interrupted before its counts
    arrive.
    """
    if so_far is None or turn is None:
        return turn if so_far is None else so_far
    added: dict[str, Any] = _sum(so_far, turn)
    return added


def _sum(so_far: Any, newer: Any) -> Any:
    """Numbers are added, in objects too; of anything else the newer one counts."""
    if isinstance(so_far, Mapping) and isinstance(newer, Mapping):
        names = {**so_far, **newer}
        return {name: _sum(so_far.get(name), newer.get(name)) for name in names}
    if newer is None:
        return so_far
    return so_far + newer if _is_number(so_far) and _is_number(newer) else newer


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
