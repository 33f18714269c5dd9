"""A payload of a chat upstream's stream becomes one `ChatChunk`.

Only this module, chat_body.py, chat_extras.py, finish_reasons.py and stream_errors.py know the
differences between vendors.
"""

import math
from typing import Any

import msgspec

from models.wire.token_counts import MAX_TOKEN_COUNT, TokenCounts, read_counts, token_count
from worker.translation.upstream_events import CallDelta, ChatChunk
from worker.upstream.chat_body import (
    LOWEST_LOGPROB,
    ChatBody,
    ChatCall,
    ChatChoice,
    ChatDelta,
    ChatFunction,
    MarkedCall,
    TokenLogprob,
    TopLogprob,
    decode_any,
    decode_leniently,
    decode_strictly,
    decode_tolerantly,
    first_choice,
    token_logprob,
)
from worker.upstream.chat_extras import Extras
from worker.upstream.error_rules import failure_in, failure_of_error
from worker.upstream.finish_reasons import finish_reason
from worker.upstream.lenient_json import SurrogateHalves, lenient_int, lenient_text, objects_in

_EMPTY_DELTA = ChatDelta()


class ChunkReader:
    """Reads the payloads of one stream in their order."""

    def __init__(self) -> None:
        self._halves = SurrogateHalves()

    def read(self, data: bytes) -> ChatChunk:
        """The next payload, as `parse_chunk` reads it. Half a character at its end waits for the
        next one."""
        return parse_chunk(data, self._halves)

    @property
    def waits(self) -> bool:
        """Whether half a character waits for the next payload."""
        return bool(self._halves.waiting)

    def rest(self) -> list[ChatChunk]:
        """What still waits when the stream ends."""
        deltas = self._halves.rest()
        return [self.read(msgspec.json.encode({"choices": [{"delta": delta}]})) for delta in deltas]


def parse_chunk(data: bytes, halves: SurrogateHalves | None = None) -> ChatChunk:
    """One payload of a stream, or a whole `chat.completion` body, as one chunk. Only the choice
    with index 0 counts. `halves`: those of the stream.

    Raises UpstreamFailed if the payload reports an error or cannot be read.
    """
    body, extras = _decode(data, halves)
    if not body.choices or body.error or (body.base_resp and body.base_resp.status_code):
        # Few payloads: each vendor has its own frames for errors, and usage comes so too.
        failure = failure_in(decode_any(data))
        if failure is not None:
            raise failure
    return _chunk(body, extras)


def _decode(data: bytes, halves: SurrogateHalves | None) -> tuple[ChatBody, Extras | None]:
    # The strict decoder accepts U+0000, which Postgres does not store. JSON can only spell it with
    # this escape.
    if (halves is not None and halves.waiting) or (b"\\" in data and b"u0000" in data):
        return decode_leniently(data, halves)
    try:
        return decode_strictly(data), None
    except (ValueError, RecursionError):
        pass
    try:
        return decode_tolerantly(data)
    except (ValueError, RecursionError):
        return decode_leniently(data, halves)


def _chunk(body: ChatBody, extras: Extras | None = None) -> ChatChunk:
    choice = first_choice(body.choices)
    has_usage = (
        body.usage
        or body.timings
        or body.x_groq
        or body.usage_metadata
        or body.usageMetadata
        or (choice is not None and choice.usage)
    )
    usage = _usage(body, choice) if has_usage else None
    if choice is None:
        return ChatChunk(
            usage=usage, model=body.model or None, service_tier=body.service_tier or None
        )
    if choice.error:
        raise failure_of_error(choice.error)
    chunk = _chunk_of_choice(body, choice, usage)
    return chunk if extras is None else _with_extras(chunk, extras)


def _chunk_of_choice(body: ChatBody, choice: ChatChoice, usage: TokenCounts | None) -> ChatChunk:
    delta = choice.delta or choice.message or _EMPTY_DELTA
    reasoning = delta.reasoning or delta.reasoning_content or ""
    summary: tuple[tuple[int, str], ...] = ()
    details: list[dict[str, Any]] = []
    if raw_details := delta.reasoning_details or delta.thinking_blocks:
        reasoning, summary, details = _reasoning_details(raw_details, reasoning)
    word = choice.finish_reason
    return ChatChunk(
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
        finish_reason(word, choice.native_finish_reason or "") if word else None,
        usage,
        body.model or None,
        body.service_tier or None,
        (choice.native_finish_reason if word == "stop" else None) or word or "",
    )


def _with_extras(chunk: ChatChunk, extras: Extras) -> ChatChunk:
    return msgspec.structs.replace(
        chunk,
        content=chunk.content or extras.text,
        reasoning=chunk.reasoning or ("" if chunk.summary else extras.reasoning),
        images=extras.images,
        has_audio=extras.has_audio,
        unread=extras.unread,
        unknown=extras.unknown,
    )


def _calls(delta: ChatDelta, *, is_whole: bool) -> tuple[CallDelta, ...]:
    """The pieces of calls. `is_whole`: the body is no stream, and calls are numbered by their
    position."""
    raw_calls = list(delta.tool_calls or ())
    if delta.function_call is not None and not raw_calls:
        raw_calls.append(ChatCall(index=0, function=delta.function_call))
    calls = []
    for position, call in enumerate(raw_calls):
        function = call.function or _function_of(call)
        call_delta = CallDelta(
            position if is_whole else call.index,
            call.id or "",
            function.name or "",
            _arguments(function.arguments),
            *((call.fields, call.function_fields) if isinstance(call, MarkedCall) else ()),
        )
        if not call_delta.is_empty:
            calls.append(call_delta)
    return tuple(calls)


def _function_of(call: ChatCall) -> ChatFunction:
    """The function of a call that has none: a custom tool, or the fields of a function."""
    if call.custom is not None:
        return ChatFunction(call.custom.name, call.custom.input)
    return ChatFunction(call.name, call.arguments)


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


def _usage(body: ChatBody, choice: ChatChoice | None) -> TokenCounts | None:
    """The counts in a chunk, wherever the vendor puts them."""
    for usage in (
        body.usage,
        choice.usage if choice is not None else None,
        body.x_groq.usage if body.x_groq is not None else None,
        body.usage_metadata,
        body.usageMetadata,
    ):
        if usage and (counts := read_counts(usage)) is not None:
            return counts
    return _counts_of_timings(body.timings) if body.timings else None


def _counts_of_timings(timings: Any) -> TokenCounts | None:
    """llama.cpp's counts: of the prompt that it has read, the part that was in its cache, and the
    output. Versions that do not count the cached part do not say how long the prompt was."""
    if not isinstance(timings, dict):
        return None
    read, cached, output = (
        token_count(timings.get(name)) for name in ("prompt_n", "cache_n", "predicted_n")
    )
    if read is None or cached is None or output is None:
        return None
    return TokenCounts(input=read + cached, output=output, cached=cached)
