"""The body of one payload of a chat upstream as typed objects, by two decoders.

The strict decoder (msgspec) reads what almost all servers send. The lenient decoder (the standard
library, then field by field) reads what the strict one refuses: lone surrogates, bytes that are no
UTF-8, control characters, values of unexpected types. There a field that makes no sense counts as
absent.
"""

import json
from typing import Annotated, Any

import msgspec

from models.errors import UpstreamFailed
from models.wire.json_input import clean_json
from worker.translation.usage import MAX_TOKEN_COUNT
from worker.upstream.lenient_json import REASONING_PARTS, lenient_int, lenient_text, objects_in

Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]

LOWEST_LOGPROB = -9999.0
"""OpenAI's value for a probability near 0: JSON has no minus infinity."""


class ChatFunction(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ChatCall(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A piece of a call. One with other fields is left to the lenient decoder, which keeps them
    (`MarkedCall`)."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: ChatFunction | None = None


class MarkedCall(ChatCall, gc=False):
    """A piece of a call with the fields that are not known, other than null: the upstream may want
    them back."""

    fields: dict[str, Any] = {}
    function_fields: dict[str, Any] = {}
    """Those of `function`."""


_CALL_FIELDS = frozenset(("index", "id", "type", "function"))
_FUNCTION_FIELDS = frozenset(("name", "arguments"))


class ChatDelta(msgspec.Struct, gc=False):
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


class MarkedDelta(ChatDelta, gc=False):
    """A delta, read leniently, with the fields that are not known and not empty."""

    fields: dict[str, Any] = {}


_DELTA_FIELDS = frozenset((*ChatDelta.__struct_fields__, "role"))


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


class TokenDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's name for cached tokens."""


class ChatChoice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: ChatDelta | None = None
    message: ChatDelta | None = None
    """In the place of `delta`, in a body that is no stream."""
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    usage: ChatUsage | None = None
    """Moonshot sends the usage here."""
    error: Any = None
    """OpenRouter sends errors here."""


class GroqExtension(msgspec.Struct, gc=False):
    usage: ChatUsage | None = None


class ChatBody(msgspec.Struct, gc=False):
    choices: list[ChatChoice] | None = None
    usage: ChatUsage | None = None
    x_groq: GroqExtension | None = None
    """Groq sends the usage of a stream here."""
    error: Any = None
    object: str | None = None
    message: Any = None
    """Of old vLLM's error body: `{"object": "error", "message", "code"}`."""
    code: Any = None
    model: str | None = None
    service_tier: str | None = None


decode_strictly = msgspec.json.Decoder(ChatBody).decode
"""A body of the expected types. Raises ValueError or RecursionError for any other."""


class _AnyChoice(msgspec.Struct, gc=False):
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None


class _AnyBody(msgspec.Struct, gc=False):
    choices: list[_AnyChoice] = []


_decode_any = msgspec.json.Decoder(_AnyBody).decode


def has_unknown_fields(data: bytes) -> bool:
    """Whether a delta in a body that the strict decoder has read has fields that it does not
    know. True also if it cannot be found out."""
    try:
        choices = _decode_any(data).choices
    except (ValueError, RecursionError):
        return True
    return any(
        not _DELTA_FIELDS.issuperset(delta)
        for choice in choices
        for delta in (choice.delta, choice.message)
        if delta is not None
    )


def decode_leniently(data: bytes) -> ChatBody:
    """A body of any types. Raises UpstreamFailed if it is no JSON object."""
    try:
        raw = clean_json(json.loads(data.decode(errors="replace").lstrip("\ufeff"), strict=False))
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
    groq = raw.get("x_groq")
    return ChatBody(
        choices=[_choice(choice) for choice in objects_in(raw.get("choices"))],
        usage=_usage(raw.get("usage")),
        x_groq=GroqExtension(_usage(groq.get("usage"))) if isinstance(groq, dict) else None,
        error=raw.get("error"),
        object=lenient_text(raw.get("object")),
        message=raw.get("message"),
        code=raw.get("code"),
        model=lenient_text(raw.get("model")),
        service_tier=lenient_text(raw.get("service_tier")) or None,
    )


def _choice(raw: dict[str, Any]) -> ChatChoice:
    reason = raw.get("finish_reason")
    logprobs = raw.get("logprobs")
    return ChatChoice(
        index=lenient_int(raw.get("index")),
        delta=_delta(raw.get("delta")),
        message=_delta(raw.get("message")),
        finish_reason=reason if isinstance(reason, str) else "stop" if reason else None,
        logprobs=ChatLogprobs(list(map(token_logprob, objects_in(logprobs.get("content")))))
        if isinstance(logprobs, dict)
        else None,
        usage=_usage(raw.get("usage")),
        error=raw.get("error"),
    )


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
    return MarkedDelta(
        fields={
            name: value for name, value in _unknown_fields(raw, _DELTA_FIELDS).items() if value
        },
        content=lenient_text(content),
        refusal=lenient_text(raw.get("refusal")) or "".join(refusals),
        reasoning=lenient_text(raw.get("reasoning")) or "".join(reasoning),
        reasoning_content=lenient_text(raw.get("reasoning_content")),
        reasoning_details=details if isinstance(details, list) else None,
        tool_calls=[
            _call(call)
            for call in objects_in(raw.get("tool_calls"))
            or [{"index": 0, "function": old} for old in objects_in(raw.get("function_call"))]
        ],
        annotations=annotations if isinstance(annotations, list) else None,
    )


def _call(raw: dict[str, Any]) -> ChatCall:
    return MarkedCall(
        index=lenient_int(raw.get("index")),
        id=lenient_text(raw.get("id")),
        function=_function(raw.get("function")),
        fields=_unknown_fields(raw, _CALL_FIELDS),
        function_fields=_unknown_fields(raw.get("function"), _FUNCTION_FIELDS),
    )


def _unknown_fields(raw: Any, known: frozenset[str]) -> dict[str, Any]:
    if not isinstance(raw, dict):
        return {}
    return {name: value for name, value in raw.items() if name not in known and value is not None}


def _function(raw: Any) -> ChatFunction | None:
    if not isinstance(raw, dict):
        return None
    arguments = raw.get("arguments")
    text = (
        arguments
        if arguments is None or isinstance(arguments, str)
        else msgspec.json.encode(arguments).decode()
    )
    return ChatFunction(name=lenient_text(raw.get("name")), arguments=text)


def _usage(raw: Any) -> ChatUsage | None:
    if not isinstance(raw, dict):
        return None
    return ChatUsage(
        prompt_tokens=lenient_int(raw.get("prompt_tokens")),
        completion_tokens=lenient_int(raw.get("completion_tokens")),
        total_tokens=lenient_int(raw.get("total_tokens")),
        prompt_tokens_details=_token_details(raw.get("prompt_tokens_details")),
        completion_tokens_details=_token_details(raw.get("completion_tokens_details")),
        prompt_cache_hit_tokens=lenient_int(raw.get("prompt_cache_hit_tokens")),
    )


def _token_details(raw: Any) -> TokenDetails | None:
    if not isinstance(raw, dict):
        return None
    return TokenDetails(
        *(
            lenient_int(raw.get(key))
            for key in ("cached_tokens", "cache_write_tokens", "reasoning_tokens")
        )
    )
