"""An upstream's chunk in, a strict `Chunk` out. The only place that knows vendors' oddities (contract §7.2).

Two ways lead to one set of lenient structs: msgspec's typed decoder for what nearly everybody sends, and the standard library's
decoder plus conversion field by field for whatever it refuses: lone surrogates, bytes that are no UTF-8, control characters, values of
unheard-of types. There a field that makes no sense is as if absent. What cannot be read at all raises UpstreamFailed.
"""

import json
import math
from typing import Annotated, Any

import msgspec

from models.errors import UpstreamFailed
from models.wire.json_input import clean_text
from worker.translation.chat.chunk import CallDelta, Chunk
from worker.translation.usage import Usage
from worker.upstream.overflow import is_overflow, overflow_failure

Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]

_LOWEST_LOGPROB = -9999.0
"""What OpenAI sends for "next to impossible"; JSON has no minus infinity."""

_MAX_TOKEN_COUNT = 2**53
"""The largest count every JSON reader holds exactly."""

_FINISH_REASONS = {
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "max_new_tokens", "model_length"), "length"
    ),
    **dict.fromkeys(
        (
            "content_filter",
            "safety",
            "image_safety",
            "recitation",
            "blocklist",
            "prohibited_content",
            "spii",
            "sensitive",
        ),
        "content_filter",
    ),
    **dict.fromkeys(
        (
            "error",
            "abort",
            "network_error",
            "insufficient_system_resource",
            "malformed_function_call",
        ),
        "error",
    ),
}
"""Vendors' words in small letters -> ours. Any other word means that the model was done: stop, tool_calls, eos, end_turn, …"""


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[Any] | None = None
    thinking_blocks: list[Any] | None = None
    """What LiteLLM calls its details"""
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None
    annotations: list[Any] | None = None


class _TopLogprob(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float = _LOWEST_LOGPROB
    bytes: list[Byte] | None = None


class _TokenLogprob(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float = _LOWEST_LOGPROB
    bytes: list[Byte] | None = None
    top_logprobs: list[_TopLogprob] | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_TokenLogprob] | None = None


class _TokenDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _TokenDetails | None = None
    completion_tokens_details: _TokenDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's word for cached tokens"""


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    """Instead of `delta` in a body that is no stream"""
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    usage: _Usage | None = None
    """Where Moonshot puts it"""
    error: Any = None
    """Where OpenRouter puts it"""


class _GroqExtension(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _Body(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    x_groq: _GroqExtension | None = None
    """Where Groq puts the usage of a stream"""
    error: Any = None
    object: str | None = None
    message: Any = None
    """vLLM's old error body: `{"object": "error", "message", "code"}`"""
    code: Any = None
    model: str | None = None
    service_tier: str | None = None


_decode = msgspec.json.Decoder(_Body).decode
_EMPTY_DELTA = _Delta()


def parse_chunk(data: bytes) -> Chunk:
    """What one payload of the stream says, or one whole `chat.completion` body, as one chunk. Only the choice with index 0 counts.

    Raises UpstreamFailed when the payload reports an error or cannot be read.
    """
    # U+0000 passes the fast decoder but no Postgres column; JSON can only spell it with this escape.
    if b"\\" in data and b"u0000" in data:
        return _chunk(_decode_leniently(data))
    try:
        body = _decode(data)
    except (ValueError, RecursionError):
        body = _decode_leniently(data)
    return _chunk(body)


def _chunk(body: _Body) -> Chunk:
    if body.error or body.object == "error":
        raise failure_of(body.error or {"message": body.message, "code": body.code})
    choice = _first_choice(body.choices)
    usage = (
        body.usage
        or (choice.usage if choice else None)
        or (body.x_groq.usage if body.x_groq else None)
    )
    usage_counts = _usage(usage) if usage is not None else None
    if choice is None:
        return Chunk(
            usage=usage_counts, model=body.model or None, service_tier=body.service_tier or None
        )
    if choice.error:
        raise failure_of(choice.error)
    delta = choice.delta or choice.message or _EMPTY_DELTA
    reasoning = delta.reasoning or delta.reasoning_content or ""
    summary: tuple[tuple[int, str], ...] = ()
    details: list[dict[str, Any]] = []
    if raw_details := delta.reasoning_details or delta.thinking_blocks:
        reasoning, summary, details = _reasoning_details(raw_details, reasoning)
    return Chunk(
        delta.content or "",
        delta.refusal or "",
        reasoning,
        summary,
        details,
        _calls(delta, whole=choice.delta is None)
        if delta.tool_calls or delta.function_call
        else (),
        _logprobs(choice.logprobs.content)
        if choice.logprobs is not None and choice.logprobs.content
        else [],
        _annotations(delta.annotations) if delta.annotations else [],
        _finish_reason(choice.finish_reason) if choice.finish_reason else None,
        usage_counts,
        body.model or None,
        body.service_tier or None,
    )


def _first_choice(choices: list[_Choice] | None) -> _Choice | None:
    for choice in choices or ():
        if not choice.index:
            return choice
    return None


def _finish_reason(word: str) -> str:
    return _FINISH_REASONS.get(word.lower(), "stop")


def _calls(delta: _Delta, *, whole: bool) -> tuple[CallDelta, ...]:
    """`whole`: the calls of a body that is no stream, which are told apart by their place alone."""
    raw_calls = list(delta.tool_calls or ())
    if delta.function_call is not None and not raw_calls:
        raw_calls.append(_Call(index=0, function=delta.function_call))
    calls = []
    for place, call in enumerate(raw_calls):
        function = call.function or _Function()
        call_delta = CallDelta(
            place if whole else call.index,
            call.id or "",
            function.name or "",
            _arguments(function.arguments),
        )
        if call_delta.id or call_delta.name or call_delta.arguments:
            calls.append(call_delta)
    return tuple(calls)


def _arguments(raw: str | dict[str, Any] | None) -> str:
    """A dict instead of a string is the whole of the arguments (old Ollama, some proxies)."""
    return raw if isinstance(raw, str) else "" if raw is None else msgspec.json.encode(raw).decode()


def _is_plain(value: Any) -> bool:
    """Whether it can be kept and sent back: details are flat, and what is sealed must be JSON that everybody reads."""
    return (
        value is None
        or isinstance(value, str | bool | float)
        or (isinstance(value, int) and abs(value) <= _MAX_TOKEN_COUNT)
    )


def _reasoning_details(
    raw: list[Any], plain_text: str
) -> tuple[str, tuple[tuple[int, str], ...], list[dict[str, Any]]]:
    """OpenRouter's or LiteLLM's list: the thought, the pieces of its summaries, and all of it as it came. `beside`, the same once more as plain text,
    counts only where the list says nothing that can be shown: encrypted thoughts do not."""
    details = [
        {name: value for name, value in detail.items() if _is_plain(value)}
        for detail in _dicts(raw)
    ]
    thought = "".join(_text(detail.get("text") or detail.get("thinking")) for detail in details)
    pieces = [
        (_count(detail.get("index")) or 0, _text(detail.get("summary"))) for detail in details
    ]
    summary = tuple((number, text) for number, text in pieces if text)
    return thought or ("" if summary else plain_text), summary, details


def _logprobs(tokens: list[_TokenLogprob]) -> list[dict[str, Any]]:
    return [
        {**_logprob(token), "top_logprobs": [_logprob(top) for top in token.top_logprobs or ()]}
        for token in tokens
    ]


def _logprob(token: _TokenLogprob | _TopLogprob) -> dict[str, Any]:
    number = token.logprob if math.isfinite(token.logprob) else _LOWEST_LOGPROB
    return {"token": token.token, "logprob": number, "bytes": token.bytes or []}


def logprobs_of(raw: Any) -> list[dict[str, Any]]:
    """The same for JSON of any shape: what makes no sense is as if absent."""
    return _logprobs([_token(token) for token in _dicts(raw)])


def _annotations(raw: list[Any]) -> list[dict[str, Any]]:
    """Chat nests the citation under its type's name, Responses has it flat; other kinds have no chat form."""
    flat = []
    for annotation in raw:
        citation = annotation.get("url_citation") if isinstance(annotation, dict) else None
        if isinstance(citation, dict) and isinstance(citation.get("url"), str):
            flat.append(
                {
                    "type": "url_citation",
                    "url": citation["url"],
                    "title": _text(citation.get("title")),
                    "start_index": _count(citation.get("start_index")) or 0,
                    "end_index": _count(citation.get("end_index")) or 0,
                }
            )
    return flat


def _usage(raw: _Usage) -> Usage | None:
    """An object without a single count says nothing."""
    if raw.prompt_tokens is None and raw.completion_tokens is None and raw.total_tokens is None:
        return None
    prompt = raw.prompt_tokens_details or _TokenDetails()
    completion = raw.completion_tokens_details or _TokenDetails()
    input_tokens, output_tokens = _bounded(raw.prompt_tokens), _bounded(raw.completion_tokens)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=_bounded(raw.total_tokens) or input_tokens + output_tokens,
        cached_tokens=_bounded(prompt.cached_tokens) or _bounded(raw.prompt_cache_hit_tokens),
        cache_write_tokens=_bounded(prompt.cache_write_tokens),
        reasoning_tokens=_bounded(completion.reasoning_tokens),
    )


def _bounded(count: int | None) -> int:
    return min(max(count or 0, 0), _MAX_TOKEN_COUNT)


# What the typed decoder refused: one value at a time, nothing raises.


def _decode_leniently(data: bytes) -> _Body:
    try:
        raw = _scrub(json.loads(data.decode(errors="replace").lstrip("\ufeff"), strict=False))
        if isinstance(raw, list) and raw:
            raw = raw[0]  # Gemini wraps an error body in a list
        if isinstance(raw, dict):
            return _body(raw)
    except (ValueError, RecursionError) as error:
        raise UpstreamFailed(
            "The upstream sent a chunk that is not JSON.", reason="upstream_garbage"
        ) from error
    raise UpstreamFailed(
        "The upstream sent a chunk that is not a JSON object.", reason="upstream_garbage"
    )


def _scrub(raw: Any) -> Any:
    if isinstance(raw, str):
        return clean_text(raw)
    if isinstance(raw, dict):
        return {_scrub(key): _scrub(value) for key, value in raw.items()}
    return [_scrub(value) for value in raw] if isinstance(raw, list) else raw


def _body(raw: dict[str, Any]) -> _Body:
    elsewhere = raw.get("x_groq")
    return _Body(
        choices=[_choice(choice) for choice in _dicts(raw.get("choices"))],
        usage=_usage_of(raw.get("usage")),
        x_groq=_GroqExtension(_usage_of(elsewhere.get("usage")))
        if isinstance(elsewhere, dict)
        else None,
        error=raw.get("error"),
        object=_text(raw.get("object")),
        message=raw.get("message"),
        code=raw.get("code"),
        model=_text(raw.get("model")),
        service_tier=_text(raw.get("service_tier")) or None,
    )


def _choice(raw: dict[str, Any]) -> _Choice:
    reason = raw.get("finish_reason")
    logprobs = raw.get("logprobs")
    return _Choice(
        index=_count(raw.get("index")),
        delta=_delta(raw.get("delta")),
        message=_delta(raw.get("message")),
        finish_reason=reason if isinstance(reason, str) else "stop" if reason else None,
        logprobs=_Logprobs([_token(token) for token in _dicts(logprobs.get("content"))])
        if isinstance(logprobs, dict)
        else None,
        usage=_usage_of(raw.get("usage")),
        error=raw.get("error"),
    )


_THOUGHT_TYPES = ("thinking", "reasoning")
"""Types of content parts that are thoughts (Mistral and others send content as a list)."""


def _delta(raw: Any) -> _Delta | None:
    if not isinstance(raw, dict):
        return None
    parts = raw.get("content")
    thoughts = [
        _text(part.get(part["type"]) or part.get("text"))
        for part in _dicts(parts)
        if part.get("type") in _THOUGHT_TYPES
    ]
    refusals = [
        _text(part.get("refusal")) for part in _dicts(parts) if part.get("type") == "refusal"
    ]
    details, annotations = (
        raw.get("reasoning_details") or raw.get("thinking_blocks"),
        raw.get("annotations"),
    )
    return _Delta(
        content=_text(parts),
        refusal=_text(raw.get("refusal")) or "".join(refusals),
        reasoning=_text(raw.get("reasoning")) or "".join(thoughts),
        reasoning_content=_text(raw.get("reasoning_content")),
        reasoning_details=details if isinstance(details, list) else None,
        tool_calls=[_call(call) for call in _dicts(raw.get("tool_calls"))],
        function_call=_function(raw.get("function_call")),
        annotations=annotations if isinstance(annotations, list) else None,
    )


def _call(raw: dict[str, Any]) -> _Call:
    return _Call(
        index=_count(raw.get("index")),
        id=_text(raw.get("id")),
        function=_function(raw.get("function")),
    )


def _function(raw: Any) -> _Function | None:
    if not isinstance(raw, dict):
        return None
    arguments = raw.get("arguments")
    text = (
        arguments
        if arguments is None or isinstance(arguments, str)
        else msgspec.json.encode(arguments).decode()
    )
    return _Function(name=_text(raw.get("name")), arguments=text)


def _token(raw: dict[str, Any]) -> _TokenLogprob:
    tops = [
        _TopLogprob(top.token, top.logprob, top.bytes)
        for top in map(_token, _dicts(raw.get("top_logprobs")))
    ]
    number, octets = raw.get("logprob"), raw.get("bytes")
    fits = isinstance(octets, list) and all(
        type(octet) is int and 0 <= octet <= 255 for octet in octets
    )
    return _TokenLogprob(
        token=_text(raw.get("token")),
        logprob=float(number)
        if type(number) is float or (type(number) is int and abs(number) < _MAX_TOKEN_COUNT)
        else _LOWEST_LOGPROB,
        bytes=octets if fits else None,
        top_logprobs=tops,
    )


def _usage_of(raw: Any) -> _Usage | None:
    if not isinstance(raw, dict):
        return None
    return _Usage(
        prompt_tokens=_count(raw.get("prompt_tokens")),
        completion_tokens=_count(raw.get("completion_tokens")),
        total_tokens=_count(raw.get("total_tokens")),
        prompt_tokens_details=_details_of(raw.get("prompt_tokens_details")),
        completion_tokens_details=_details_of(raw.get("completion_tokens_details")),
        prompt_cache_hit_tokens=_count(raw.get("prompt_cache_hit_tokens")),
    )


def _details_of(raw: Any) -> _TokenDetails | None:
    if not isinstance(raw, dict):
        return None
    return _TokenDetails(
        *(
            _count(raw.get(key))
            for key in ("cached_tokens", "cache_write_tokens", "reasoning_tokens")
        )
    )


def _dicts(raw: Any) -> list[dict[str, Any]]:
    """The dicts of a list; a single dict stands for a list of one."""
    if isinstance(raw, dict):
        return [raw]
    return [value for value in raw if isinstance(value, dict)] if isinstance(raw, list) else []


def _text(raw: Any) -> str:
    """The text of a string, a number, a content part, or a list of those; anything else says nothing."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, list):
        return "".join(map(_text, raw))
    if isinstance(raw, dict):
        return _text(raw.get("text")) if raw.get("type") not in _THOUGHT_TYPES else ""
    return str(raw) if type(raw) in (int, float) else ""


def _count(raw: Any) -> int | None:
    if type(raw) is str and raw.isascii() and raw.isdigit() and len(raw) < 20:
        return int(raw)
    if type(raw) is float and math.isfinite(raw):
        return int(raw)
    return raw if type(raw) is int else None


# An error in the middle of a stream that began with HTTP 200.

_ERROR_CODES = frozenset(
    """server_error rate_limit_exceeded invalid_prompt data_residency_mismatch bio_policy misalignment_policy_violation
    vector_store_timeout invalid_image invalid_image_format invalid_base64_image invalid_image_url image_too_large image_too_small
    image_parse_error image_content_policy_violation invalid_image_mode image_file_too_large unsupported_image_media_type
    empty_image_file failed_to_download_image image_file_not_found""".split()  # noqa: SIM905 - a line for each would fill a screen
)
"""`error.code` of a failed response stays inside the SDK's list (contract §3)."""

_FORWARDED_STATUSES = frozenset({400, 401, 403, 404, 408, 413, 422, 429})
"""HTTP statuses a foreground client gets as the upstream said them; all others become 502 (design §4.9)."""

_CREDENTIAL_STATUSES = frozenset({401, 403})
"""Its words about our credential are for operators, not for clients."""

_MAX_MESSAGE = 500
"""Characters of an upstream's message that are passed on."""


def failure_of(error: Any) -> UpstreamFailed:
    """What to raise for an upstream's error object, or for whatever stands in its place."""
    fields = error if isinstance(error, dict) else {"message": error}
    codes = [
        word
        for word in (fields.get("code"), fields.get("type"), fields.get("status"))
        if isinstance(word, str)
    ]
    status = next(
        (number for key in ("code", "status") if (number := _count(fields.get(key))) is not None), 0
    )
    message = _text(fields.get("message")) or _text(fields.get("detail")) or "it gave no reason"
    if status in _CREDENTIAL_STATUSES:
        message = "it refused this server's credential"
    elif is_overflow(message, codes):
        return overflow_failure(f"The upstream reported an error: {message[:_MAX_MESSAGE]}")
    return UpstreamFailed(
        f"The upstream reported an error: {message[:_MAX_MESSAGE]}",
        code=_error_code(codes, status),
        reason="upstream_error",
        status=status if status in _FORWARDED_STATUSES else 502,
    )


def _error_code(codes: list[str], status: int) -> str:
    known = next((word for word in codes if word in _ERROR_CODES), None)
    if known is not None:
        return known
    if status == 429 or any(
        "rate_limit" in word or word in ("too_many_requests", "RESOURCE_EXHAUSTED")
        for word in codes
    ):
        return "rate_limit_exceeded"
    if status in (400, 413, 422) or not {"invalid_request_error", "BadRequestError"}.isdisjoint(
        codes
    ):
        return "invalid_prompt"
    return "server_error"
