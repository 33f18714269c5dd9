"""The body of one payload of a chat upstream as typed objects, by three decoders.

The strict decoder (msgspec) reads what almost all servers send. The tolerant one reads payloads
with fields that the strict one does not know, and what is in these. The lenient decoder (the
standard library, then field by field) reads what both refuse: lone surrogates, bytes that are no
UTF-8, control characters, values of unexpected types. There a field that makes no sense counts as
absent.
"""

import json
from typing import Annotated, Any

import msgspec

from models.errors import UpstreamFailed
from models.wire.json_input import clean_json
from models.wire.token_counts import MAX_TOKEN_COUNT
from worker.upstream.chat_extras import READ_NAMES, Extras, extras_of
from worker.upstream.error_rules import failure_of_text
from worker.upstream.finish_reasons import word_of
from worker.upstream.lenient_json import (
    REASONING_PARTS,
    SurrogateHalves,
    lenient_int,
    lenient_text,
    objects_in,
)

Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]

LOWEST_LOGPROB = -9999.0
"""OpenAI's value for a probability near 0: JSON has no minus infinity."""


class ChatFunction(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ChatCustom(msgspec.Struct, gc=False):
    name: str | None = None
    input: str | None = None


class ChatCall(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A piece of a call. One with other fields is left to the lenient decoder, which keeps them
    (`MarkedCall`)."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: ChatFunction | None = None
    custom: ChatCustom | None = None
    """In the place of `function`, in a call of a custom tool."""
    name: str | None = None
    """Of a function that is not in an object of its own."""
    arguments: str | dict[str, Any] | None = None


class MarkedCall(ChatCall, gc=False):
    """A piece of a call with the fields that are not known, other than null: the upstream may want
    them back."""

    fields: dict[str, Any] = {}
    function_fields: dict[str, Any] = {}
    """Those of `function`."""


_CALL_FIELDS = frozenset(ChatCall.__struct_fields__)
_FUNCTION_FIELDS = frozenset(ChatFunction.__struct_fields__)


class ChatDelta(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A field that is not here sends the payload to the lenient decoder, which counts it. So does a
    value of a field that may only be null: chat_extras.py reads these."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[Any] | None = None
    thinking_blocks: list[Any] | None = None
    """LiteLLM's name for `reasoning_details`."""
    tool_calls: list[ChatCall] | None = None
    function_call: ChatFunction | None = None
    annotations: list[Any] | None = None
    role: Any = None
    name: Any = None
    id: Any = None
    type: Any = None
    tool_call_id: Any = None
    status: Any = None
    token_ids: Any = None
    prefix: Any = None
    partial: Any = None
    images: None = None
    audio: None = None
    reasoning_text: None = None
    thinking: None = None
    extra_content: None = None
    provider_specific_fields: None = None
    reasoning_opaque: None = None
    citations: None = None
    error: None = None


class TopLogprob(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float = LOWEST_LOGPROB
    bytes: list[Byte] | None = None


class TokenLogprob(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float = LOWEST_LOGPROB
    bytes: list[Byte] | None = None
    top_logprobs: list[TopLogprob] | None = None


class ChatLogprobs(msgspec.Struct, gc=False):
    content: list[TokenLogprob] | None = None


class ChatChoice(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """As ChatDelta, a field that is not here sends the payload to the lenient decoder."""

    index: int | None = None
    delta: ChatDelta | None = None
    message: ChatDelta | None = None
    """In the place of `delta`, in a body that is no stream."""
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    usage: Any = None
    """Moonshot sends the usage here."""
    error: Any = None
    """OpenRouter sends errors here."""
    native_finish_reason: str | None = None
    """OpenRouter: the word of the vendor behind it."""
    text: None = None
    """The content, in the place of `delta`, of servers that know only the older API."""
    stop_reason: Any = None
    matched_stop: Any = None
    token_ids: Any = None
    prompt_token_ids: Any = None
    hidden_states: Any = None
    seed: Any = None
    content_filter_results: Any = None
    content_filter_result: Any = None
    content_filter_offsets: Any = None


class _TolerantDelta(ChatDelta, gc=False, forbid_unknown_fields=False):
    pass


class _TolerantChoice(ChatChoice, gc=False, forbid_unknown_fields=False):
    delta: _TolerantDelta | None = None
    message: _TolerantDelta | None = None


class GroqExtension(msgspec.Struct, gc=False):
    usage: Any = None


class MiniMaxState(msgspec.Struct, gc=False):
    status_code: Any = 0


class ChatBody(msgspec.Struct, gc=False):
    choices: list[ChatChoice] | None = None
    usage: Any = None
    x_groq: GroqExtension | None = None
    """Groq sends the usage of a stream here."""
    usage_metadata: Any = None
    """Gemini's name for `usage`, as `usageMetadata`."""
    usageMetadata: Any = None  # noqa: N815 - the name in the JSON
    timings: Any = None
    """llama.cpp counts the tokens here too."""
    error: Any = None
    base_resp: MiniMaxState | None = None
    """Also beside choices."""
    model: str | None = None
    service_tier: str | None = None


class _TolerantBody(ChatBody, gc=False):
    choices: list[_TolerantChoice] | None = None  # type: ignore[assignment] # a list of its own


_CHOICE_FIELDS = frozenset(ChatChoice.__struct_fields__)
_DELTA_FIELDS = (frozenset(ChatDelta.__struct_fields__) | READ_NAMES) - {"citations"}
"""Fields of a delta that are read, or that have no content."""

_decode_any = msgspec.json.Decoder(dict[str, Any]).decode
_decode_tolerantly = msgspec.json.Decoder(_TolerantBody).decode
decode_strictly = msgspec.json.Decoder(ChatBody).decode
"""A body of the expected types. Raises ValueError or RecursionError for any other."""


def decode_tolerantly(data: bytes) -> tuple[ChatBody, Extras | None]:
    """A body of the expected types that has other fields besides, and what is in these. Raises
    ValueError or RecursionError for any other."""
    return _decode_tolerantly(data), _extras(_decode_any(data))


def decode_leniently(
    data: bytes, halves: SurrogateHalves | None = None
) -> tuple[ChatBody, Extras | None]:
    """A body of any types, and what its first choice has besides. `halves`: those of its stream.
    Raises UpstreamFailed if it is no JSON object."""
    raw = decode_any(data, halves)
    if isinstance(raw, list) and raw:
        raw = raw[0]  # Gemini wraps an error body in a list
    if isinstance(raw, dict):
        return _body(raw), _extras(raw)
    words = failure_of_text(raw.encode()) if isinstance(raw, str) else None
    raise words or UpstreamFailed(
        "The upstream sent a chunk that is not a JSON object.", reason="upstream_garbage"
    )


def decode_any(data: bytes, halves: SurrogateHalves | None = None) -> Any:
    """The JSON of any payload. `halves`: those of its stream. Raises UpstreamFailed if it is none:
    with the words of the error, if it is a text."""
    try:
        raw = json.loads(_text(data).lstrip("\ufeff"), strict=False)
        if halves is not None and isinstance(raw, dict):
            _join_halves(raw, halves)
        return clean_json(raw)
    except (ValueError, RecursionError) as error:
        raise failure_of_text(data) or UpstreamFailed(
            "The upstream sent a chunk that is not JSON.", reason="upstream_garbage"
        ) from error


def _text(data: bytes) -> str:
    """Surrogates are kept, also as three bytes each."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode(errors="replace")


def first_choice(choices: list[ChatChoice] | None) -> ChatChoice | None:
    """The choice with index 0, or without an index: only this one counts."""
    for choice in choices or ():
        if not choice.index:
            return choice
    return None


def _first_raw_choice(body: dict[str, Any]) -> dict[str, Any] | None:
    for choice in objects_in(body.get("choices")):
        if not lenient_int(choice.get("index")):
            return choice
    return None


def _join_halves(body: dict[str, Any], halves: SurrogateHalves) -> None:
    """Replaces the delta of the first choice by one with whole characters."""
    choice = _first_raw_choice(body)
    if choice is None:
        return
    for name in ("delta", "message", "text"):
        if choice.get(name):
            whole = halves.join({"content": choice[name]} if name == "text" else choice[name])
            choice[name] = whole["content"] if name == "text" else whole
            return


def _extras(body: dict[str, Any]) -> Extras | None:
    choice = _first_raw_choice(body)
    if choice is None:
        return None
    return extras_of(choice, _CHOICE_FIELDS, _DELTA_FIELDS)


def token_logprob(raw: dict[str, Any]) -> TokenLogprob:
    """The log probability of a token, from an object with any values."""
    top_logprobs = [
        TopLogprob(top.token, top.logprob, top.bytes)
        for top in map(token_logprob, objects_in(raw.get("top_logprobs")))
    ]
    octets = raw.get("bytes")
    has_octets = isinstance(octets, list) and all(
        type(octet) is int and 0 <= octet <= 255 for octet in octets
    )
    return TokenLogprob(
        token=lenient_text(raw.get("token")),
        logprob=_logprob(raw.get("logprob")),
        bytes=octets if has_octets else None,
        top_logprobs=top_logprobs,
    )


def _logprob(raw: Any) -> float:
    if type(raw) is float or (type(raw) is int and abs(raw) < MAX_TOKEN_COUNT):
        return float(raw)
    return LOWEST_LOGPROB


def _body(raw: dict[str, Any]) -> ChatBody:
    groq, state = raw.get("x_groq"), raw.get("base_resp")
    return ChatBody(
        choices=[_choice(choice) for choice in objects_in(raw.get("choices"))],
        usage=raw.get("usage"),
        x_groq=GroqExtension(groq.get("usage")) if isinstance(groq, dict) else None,
        usage_metadata=raw.get("usage_metadata"),
        usageMetadata=raw.get("usageMetadata"),
        timings=raw.get("timings"),
        error=raw.get("error"),
        base_resp=MiniMaxState(state.get("status_code")) if isinstance(state, dict) else None,
        model=lenient_text(raw.get("model")),
        service_tier=lenient_text(raw.get("service_tier")) or None,
    )


def _choice(raw: dict[str, Any]) -> ChatChoice:
    delta = raw.get("delta")
    logprobs = raw.get("logprobs")
    message = raw.get("message")
    if not delta and not message and raw.get("text"):
        delta = {"content": raw["text"]}
    return ChatChoice(
        index=lenient_int(raw.get("index")),
        delta=_delta(delta),
        message=_delta(message),
        finish_reason=word_of(raw.get("finish_reason")) or None,
        native_finish_reason=word_of(raw.get("native_finish_reason")) or None,
        logprobs=ChatLogprobs(list(map(token_logprob, objects_in(logprobs.get("content")))))
        if isinstance(logprobs, dict)
        else None,
        usage=raw.get("usage"),
        error=raw.get("error")
        or (delta.get("error") if isinstance(delta, dict) else None)
        or _error_of_end(raw.get("finish_reason")),
    )


def _error_of_end(reason: Any) -> Any:
    """The error in a `finish_reason` that is an object with words (SGLang, of a request that it has
    ended itself)."""
    return reason if isinstance(reason, dict) and lenient_text(reason.get("message")) else None


def _delta(raw: Any) -> ChatDelta | None:
    if not isinstance(raw, dict):
        return None
    content = raw.get("content")
    parts = objects_in(content)
    reasoning = [
        lenient_text(part.get(part["type"]) or part.get("text"))
        for part in parts
        if part.get("type") in REASONING_PARTS
    ]
    refusals = [
        lenient_text(part.get("refusal")) for part in parts if part.get("type") == "refusal"
    ]
    details = raw.get("reasoning_details") or raw.get("thinking_blocks")
    annotations = raw.get("annotations")
    return ChatDelta(
        content=lenient_text(content),
        refusal=lenient_text(raw.get("refusal")) or "".join(refusals),
        reasoning=lenient_text(raw.get("reasoning")) or "".join(reasoning),
        reasoning_content=lenient_text(raw.get("reasoning_content")),
        reasoning_details=details if isinstance(details, list) else None,
        tool_calls=[
            _call(call)
            for call in _raw_calls(raw.get("tool_calls"))
            or [{"index": 0, "function": old} for old in objects_in(raw.get("function_call"))]
        ],
        annotations=annotations if isinstance(annotations, list) else None,
    )


def _raw_calls(raw: Any) -> list[dict[str, Any]]:
    """The calls of a list, of a single object, or of an object that has them by their numbers."""
    is_numbered = (
        isinstance(raw, dict)
        and raw
        and all(name.isdigit() and isinstance(call, dict) for name, call in raw.items())
    )
    if is_numbered:
        return [{"index": int(number), **call} for number, call in raw.items()]
    return objects_in(raw)


def _call(raw: dict[str, Any]) -> ChatCall:
    custom, function = raw.get("custom"), raw.get("function")
    if isinstance(function, str):  # the name alone, beside its arguments
        function = {"name": function, "arguments": raw.get("arguments")}
    return MarkedCall(
        index=lenient_int(raw.get("index")),
        id=lenient_text(raw.get("id")),
        function=_function(function),
        custom=ChatCustom(lenient_text(custom.get("name")), lenient_text(custom.get("input")))
        if isinstance(custom, dict)
        else None,
        name=lenient_text(raw.get("name")),
        arguments=_arguments(raw.get("arguments")),
        fields=_unknown_fields(raw, _CALL_FIELDS),
        function_fields=_unknown_fields(function, _FUNCTION_FIELDS),
    )


def _unknown_fields(raw: Any, known: frozenset[str]) -> dict[str, Any]:
    if not isinstance(raw, dict):
        return {}
    return {name: value for name, value in raw.items() if name not in known and value is not None}


def _function(raw: Any) -> ChatFunction | None:
    if not isinstance(raw, dict):
        return None
    return ChatFunction(lenient_text(raw.get("name")), _arguments(raw.get("arguments")))


def _arguments(raw: Any) -> str | None:
    if raw is None or isinstance(raw, str):
        return raw
    return msgspec.json.encode(raw).decode()
