"""A payload of a chat upstream's stream becomes one `Chunk`.

Only this module, chat_body.py and stream_errors.py know the differences between vendors.
"""

import math
from typing import Any

import msgspec

from worker.translation.chat.chunk import CallDelta, Chunk
from worker.translation.usage import MAX_TOKEN_COUNT, Usage, bounded_count
from worker.upstream.chat_body import (
    LOWEST_LOGPROB,
    ChatBody,
    ChatCall,
    ChatChoice,
    ChatDelta,
    ChatFunction,
    ChatUsage,
    TokenDetails,
    TokenLogprob,
    TopLogprob,
    decode_any,
    decode_leniently,
    decode_strictly,
    token_logprob,
)
from worker.upstream.lenient_json import lenient_int, lenient_text, objects_in
from worker.upstream.stream_errors import failure_in, failure_of_error

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
"""A vendor's finish_reason in lower case -> ours. Every other one (stop, tool_calls, eos,
end_turn, …) means that the model finished."""

_EMPTY_DELTA = ChatDelta()


def parse_chunk(data: bytes) -> Chunk:
    """One payload of a stream, or a whole `chat.completion` body, as one chunk. Only the choice
    with index 0 counts.

    Raises UpstreamFailed if the payload reports an error or cannot be read.
    """
    # The strict decoder accepts U+0000, which Postgres does not store. JSON can only spell it with
    # this escape.
    if b"\\" in data and b"u0000" in data:
        body = decode_leniently(data)
    else:
        try:
            body = decode_strictly(data)
        except (ValueError, RecursionError):
            body = decode_leniently(data)
    if not body.choices or body.error or (body.base_resp and body.base_resp.status_code):
        # Few payloads: each vendor has its own frames for errors, and usage comes so too.
        failure = failure_in(decode_any(data))
        if failure is not None:
            raise failure
    return _chunk(body)


def _chunk(body: ChatBody) -> Chunk:
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
        raise failure_of_error(choice.error)
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
        _calls(delta, is_whole=choice.delta is None)
        if delta.tool_calls or delta.function_call
        else (),
        _logprobs(choice.logprobs.content)
        if choice.logprobs is not None and choice.logprobs.content
        else [],
        _annotations(delta.annotations) if delta.annotations else [],
        _FINISH_REASONS.get(choice.finish_reason.lower(), "stop") if choice.finish_reason else None,
        usage_counts,
        body.model or None,
        body.service_tier or None,
    )


def _first_choice(choices: list[ChatChoice] | None) -> ChatChoice | None:
    for choice in choices or ():
        if not choice.index:
            return choice
    return None


def _calls(delta: ChatDelta, *, is_whole: bool) -> tuple[CallDelta, ...]:
    """The pieces of calls. `is_whole`: the body is no stream, and calls are numbered by their
    position."""
    raw_calls = list(delta.tool_calls or ())
    if delta.function_call is not None and not raw_calls:
        raw_calls.append(ChatCall(index=0, function=delta.function_call))
    calls = []
    for position, call in enumerate(raw_calls):
        function = call.function or ChatFunction()
        call_delta = CallDelta(
            position if is_whole else call.index,
            call.id or "",
            function.name or "",
            _arguments(function.arguments),
        )
        if call_delta.id or call_delta.name or call_delta.arguments:
            calls.append(call_delta)
    return tuple(calls)


def _arguments(raw: str | dict[str, Any] | None) -> str:
    """Arguments as a string. An object is all of the arguments (old Ollama, some proxies)."""
    return raw if isinstance(raw, str) else "" if raw is None else msgspec.json.encode(raw).decode()


def _reasoning_details(
    raw: list[Any], plain_text: str
) -> tuple[str, tuple[tuple[int, str], ...], list[dict[str, Any]]]:
    """OpenRouter's or LiteLLM's list of details: the reasoning, the pieces of its summaries, and
    the details to send back.

    `plain_text` is the same reasoning in the field beside the list. It counts only if the list has
    no readable text: details may be encrypted.
    """
    details = [
        {name: value for name, value in detail.items() if _is_plain(value)}
        for detail in objects_in(raw)
    ]
    reasoning = "".join(
        lenient_text(detail.get("text") or detail.get("thinking")) for detail in details
    )
    pieces = [
        (lenient_int(detail.get("index")) or 0, lenient_text(detail.get("summary")))
        for detail in details
    ]
    summary = tuple((number, text) for number, text in pieces if text)
    return reasoning or ("" if summary else plain_text), summary, details


def _is_plain(value: Any) -> bool:
    """Whether a detail's value can be stored and sent back: details are flat, and every JSON
    reader must be able to read them."""
    return (
        value is None
        or isinstance(value, str | bool | float)
        or (isinstance(value, int) and abs(value) <= MAX_TOKEN_COUNT)
    )


def _logprobs(tokens: list[TokenLogprob]) -> list[dict[str, Any]]:
    return [
        {**_logprob(token), "top_logprobs": [_logprob(top) for top in token.top_logprobs or ()]}
        for token in tokens
    ]


def _logprob(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    number = token.logprob if math.isfinite(token.logprob) else LOWEST_LOGPROB
    return {"token": token.token, "logprob": number, "bytes": token.bytes or []}


def logprobs_of(raw: Any) -> list[dict[str, Any]]:
    """Log probabilities in the Responses shape, from JSON of any shape."""
    return _logprobs([token_logprob(token) for token in objects_in(raw)])


def _annotations(raw: list[Any]) -> list[dict[str, Any]]:
    """Citations in the Responses shape, which is flat. Chat nests them under their type's name,
    and has no other annotations."""
    flat = []
    for annotation in raw:
        citation = annotation.get("url_citation") if isinstance(annotation, dict) else None
        if isinstance(citation, dict) and isinstance(citation.get("url"), str):
            flat.append(
                {
                    "type": "url_citation",
                    "url": citation["url"],
                    "title": lenient_text(citation.get("title")),
                    "start_index": lenient_int(citation.get("start_index")) or 0,
                    "end_index": lenient_int(citation.get("end_index")) or 0,
                }
            )
    return flat


def _usage(raw: ChatUsage) -> Usage | None:
    """The usage; None if the object has no count of its own, only details."""
    if raw.prompt_tokens is None and raw.completion_tokens is None and raw.total_tokens is None:
        return None
    prompt = raw.prompt_tokens_details or TokenDetails()
    completion = raw.completion_tokens_details or TokenDetails()
    input_tokens = bounded_count(raw.prompt_tokens)
    output_tokens = bounded_count(raw.completion_tokens)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=bounded_count(raw.total_tokens) or input_tokens + output_tokens,
        cached_tokens=bounded_count(prompt.cached_tokens)
        or bounded_count(raw.prompt_cache_hit_tokens),
        cache_write_tokens=bounded_count(prompt.cache_write_tokens),
        reasoning_tokens=bounded_count(completion.reasoning_tokens),
    )
