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
from worker.upstream.stream_errors import failure_of_text

Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]

LOWEST_LOGPROB = -9999.0
"""OpenAI's value for a probability near 0: JSON has no minus infinity."""


class ChatFunction(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ChatCall(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: ChatFunction | None = None


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


class MiniMaxState(msgspec.Struct, gc=False):
    status_code: Any = 0


class ChatBody(msgspec.Struct, gc=False):
    choices: list[ChatChoice] | None = None
    usage: ChatUsage | None = None
    x_groq: GroqExtension | None = None
    """Groq sends the usage of a stream here."""
    error: Any = None
    base_resp: MiniMaxState | None = None
    """Also beside choices."""
    model: str | None = None
    service_tier: str | None = None


decode_strictly = msgspec.json.Decoder(ChatBody).decode
"""A body of the expected types. Raises ValueError or RecursionError for any other."""


def decode_leniently(data: bytes) -> ChatBody:
    """A body of any types. Raises UpstreamFailed if it is no JSON object."""
    raw = decode_any(data)
    if isinstance(raw, list) and raw:
        raw = raw[0]  # Gemini wraps an error body in a list
    if isinstance(raw, dict):
        return _body(raw)
    words = failure_of_text(raw.encode()) if isinstance(raw, str) else None
    raise words or UpstreamFailed(
        "The upstream sent a chunk that is not a JSON object.", reason="upstream_garbage"
    )


def decode_any(data: bytes) -> Any:
    """The JSON of any payload. Raises UpstreamFailed if it is none: with the words of the error, if
    it is a text."""
    try:
        return clean_json(json.loads(data.decode(errors="replace").lstrip("\ufeff"), strict=False))
    except (ValueError, RecursionError) as error:
        raise failure_of_text(data) or UpstreamFailed(
            "The upstream sent a chunk that is not JSON.", reason="upstream_garbage"
        ) from error


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
        usage=_usage(raw.get("usage")),
        x_groq=GroqExtension(_usage(groq.get("usage"))) if isinstance(groq, dict) else None,
        error=raw.get("error"),
        base_resp=MiniMaxState(state.get("status_code")) if isinstance(state, dict) else None,
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
    return ChatDelta(
        content=lenient_text(content),
        refusal=lenient_text(raw.get("refusal")) or "".join(refusals),
        reasoning=lenient_text(raw.get("reasoning")) or "".join(reasoning),
        reasoning_content=lenient_text(raw.get("reasoning_content")),
        reasoning_details=details if isinstance(details, list) else None,
        tool_calls=[_call(call) for call in objects_in(raw.get("tool_calls"))],
        function_call=_function(raw.get("function_call")),
        annotations=annotations if isinstance(annotations, list) else None,
    )


def _call(raw: dict[str, Any]) -> ChatCall:
    return ChatCall(
        index=lenient_int(raw.get("index")),
        id=lenient_text(raw.get("id")),
        function=_function(raw.get("function")),
    )


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
