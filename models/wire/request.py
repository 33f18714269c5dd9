"""The create request: what a client may ask, checked before anything is stored (contract §2, design §11)."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from models.errors import InvalidRequest
from models.wire.checks import (
    Check,
    array,
    boolean,
    choice,
    integer,
    json_object,
    json_type,
    missing,
    number,
    record,
    shorten,
    string,
    tagged,
    too_long,
    wrong_type,
)
from models.wire.events import Item
from models.wire.items import NewId, input_items
from models.wire.json_schema import require_schema
from models.wire.mcp import split_credentials
from models.wire.tools import added_tools, native_tools, require_valid_choice, tool_choice, tools

_MAX_INTEGER = 2**31 - 1
"""Our own bound for counts: what any upstream's integer holds."""


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """`ttl` in seconds; None: as long as this server remembers by default."""

    ttl: int | None = None


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A request that can be carried out, as far as that can be known without looking anything up."""

    model: str
    input: list[Item]
    """Normalised (models/wire/items.py); references are still unresolved, calls and outputs not yet paired."""
    parameters: dict[str, Any]
    """What else the client set: the Response echoes it and worker/translation reads it."""
    background: bool = False
    store: bool = True
    stream: bool = False
    previous_response_id: str | None = None
    """Of the right shape; whether it exists is asked later."""
    conversation: str | None = None
    """The same."""
    cache: CacheOptions | None = None
    """The answer may be a remembered one, and may be remembered (docs/cache.md)."""
    credentials: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    """What of the `mcp` tools is only ever stored sealed: server_label -> `server_url`, `authorization`, `headers` (models/wire/mcp.py)."""


def parse_create(
    body: Any,
    *,
    new_id: NewId,
    passthrough: Collection[str] = (),
    ephemeral_background: bool = False,
    has_web_search: bool = False,
    generate: bool = True,
    native: bool = False,
) -> CreateRequest:
    """The request in a decoded body (models/wire/json_input.py).

    `new_id` makes ids for items that come without one; `passthrough` names top-level parameters outside the API that are kept unchecked;
    `ephemeral_background` allows `background` with `store: false`; `searches`: this server can search the web; without `generate` the model
    is not asked yet, and there may be nothing to say; `native`: the model's upstream speaks the Responses API and runs tools of its own.
    Raises InvalidRequest, worded as in contract §5.1.
    """
    given = _set_parameters(body, passthrough)
    if not generate:
        given.setdefault("input", [])
    for name in ("model", "input"):
        if name not in given:
            raise missing(name)
    checks = {**_PARAMETERS, "tools": native_tools} if native else _PARAMETERS
    checked = {
        name: checks[name](value, name) if name in checks else value
        for name, value in given.items()
    }
    items = input_items(checked.pop("input"), new_id)
    credentials: dict[str, dict[str, Any]] = {}
    if "tools" in checked:
        checked["tools"], credentials = split_credentials(checked["tools"])
    request = CreateRequest(
        model=checked.pop("model"),
        input=items,
        background=checked.pop("background", False),
        store=checked.pop("store", True),
        stream=checked.pop("stream", False),
        previous_response_id=checked.pop("previous_response_id", None),
        conversation=checked.pop("conversation", None),
        cache=checked.pop("cache", None),
        parameters=checked,
        credentials=credentials,
    )
    _check_combinations(
        request,
        ephemeral_background=ephemeral_background,
        has_web_search=has_web_search or native,
        generate=generate,
    )
    return request


def require_include(values: list[str]) -> None:
    """Checks the `include[]` of a query, which takes the same values as in a body. Raises InvalidRequest."""
    _INCLUDE(values, "include")


def _set_parameters(body: Any, passthrough: Collection[str]) -> dict[str, Any]:
    """What the body sets, without nulls and without what OpenAI documents and we do not act on."""
    if type(body) is not dict:
        raise InvalidRequest(
            f"Invalid body: expected a JSON object, but got {json_type(body)} instead.",
            code="invalid_type",
        )
    given = {}
    for name, value in body.items():
        if value is None or name in _IGNORED:
            continue
        if name not in _PARAMETERS and name != "input" and name not in passthrough:
            raise unknown_parameter(name)
        given[name] = value
    return given


def unknown_parameter(name: str) -> InvalidRequest:
    """What to raise for a parameter that the API does not have; names of Chat Completions get ours."""
    message = f"Unknown parameter: '{shorten(name)}'."
    if name in _CHAT_NAMES:
        message += f" In the Responses API, this parameter is called {_CHAT_NAMES[name]}."
    return InvalidRequest(message, param=shorten(name), code="unknown_parameter")


def _check_combinations(
    request: CreateRequest, *, ephemeral_background: bool, has_web_search: bool, generate: bool
) -> None:
    """What parameters demand of each other (contract §2, design §11)."""
    parameters = request.parameters
    if request.conversation is not None and request.previous_response_id is not None:
        message = "Mutually exclusive parameters. Ensure you are only providing one of: 'previous_response_id' or 'conversation'."
        raise InvalidRequest(message, param="conversation", code="mutually_exclusive_parameters")
    if (
        not request.input
        and request.previous_response_id is None
        and request.conversation is None
        and generate
    ):
        message = "Invalid 'input': empty array. Expected an array with minimum length 1, but got an empty array instead."
        raise InvalidRequest(message, param="input", code="empty_array")
    if request.background and not request.store and not ephemeral_background:
        message = (
            "'background' needs 'store': true, because a background response is fetched later."
        )
        raise InvalidRequest(message, param="background", code="unsupported_parameter")
    if "stream_options" in parameters and not request.stream:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise InvalidRequest(message, param="stream_options", code="invalid_value")
    if "tool_choice" in parameters:
        require_valid_choice(
            parameters["tool_choice"],
            [*parameters.get("tools", []), *added_tools(request.input)],
            has_web_search=has_web_search,
        )


def metadata(value: Any, where: str) -> dict[str, str]:
    """At most 16 pairs, keys up to 64 characters, values up to 512 (contract §2)."""
    pairs = {key: found for key, found in json_object(value, where).items() if found is not None}
    if len(pairs) > 16:
        message = (
            f"Invalid '{where}': too many properties. Expected an object with at most 16 properties, "
            f"but got an object with {len(pairs)} properties instead."
        )
        raise InvalidRequest(message, param=where, code="object_above_max_properties")
    for key, found in pairs.items():
        place = f"{where}.{shorten(key)}"
        if len(key) > 64:
            raise too_long(place, "string", 64, len(key))
        _METADATA_VALUE(found, place)
    return pairs


def _reasoning(value: Any, where: str) -> dict[str, Any]:
    """`generate_summary` is the old name of `summary`."""
    kept: dict[str, Any] = _REASONING(value, where)
    alias = kept.pop("generate_summary", None)
    return kept if alias is None else {"summary": alias, **kept}


def _context_management(value: Any, where: str) -> list[dict[str, Any]]:
    """At least one entry; of several, the lowest threshold counts."""
    kept: list[dict[str, Any]] = _CONTEXT_EDITS(value, where)
    if not kept:
        message = f"Invalid '{where}': empty array. Expected an array with minimum length 1, but got an empty array instead."
        raise InvalidRequest(message, param=where, code="empty_array")
    return kept


def _response_id(value: Any, where: str) -> str:
    if type(value) is not str:
        raise wrong_type(where, "a string", value)
    if not _ID.fullmatch(value):
        message = (
            f"Invalid '{where}': '{shorten(value)}'. Expected an ID that contains letters, numbers, underscores, or dashes, "
            "but this value contained additional characters."
        )
        raise InvalidRequest(message, param=where, code="invalid_value")
    return value


def _conversation(value: Any, where: str) -> str:
    """An id, or an object that holds it as `id`."""
    if type(value) is not dict and type(value) is not str:
        raise wrong_type(where, "a string or an object", value)
    return _response_id(value, where) if type(value) is str else _CONVERSATION(value, where)["id"]


def _cache(value: Any, where: str) -> CacheOptions | None:
    """`true`, or an object that says for how long."""
    if type(value) is not bool and type(value) is not dict:
        raise wrong_type(where, "a boolean or an object", value)
    if type(value) is bool:
        return CacheOptions() if value else None
    return CacheOptions(_CACHE(value, where).get("ttl"))


def _prompt(_value: Any, where: str) -> str:
    message = "'prompt' is not supported: this server keeps no prompt templates. Send the text in 'instructions' and 'input'."
    raise InvalidRequest(message, param=where, code="unsupported_parameter")


def _json_schema(value: Any, where: str) -> dict[str, Any]:
    """`text.format` of that type; its schema must be one."""
    kept: dict[str, Any] = _FORMAT(value, where)
    subject = f"response_format '{kept['name']}'"
    require_schema(
        kept["schema"],
        f"{where}.schema",
        subject,
        code="invalid_json_schema",
        strict=kept.get("strict", False),
    )
    return kept


_CONTEXT_EDITS = array(
    tagged({"compaction": record({}, {"compact_threshold": integer(1000, _MAX_INTEGER)})})
)
_ID = re.compile(r"[A-Za-z0-9_-]+")
_METADATA_VALUE = string(at_most=512)
_CONVERSATION = record({"id": _response_id})
_CACHE = record({}, {"ttl": integer(1, _MAX_INTEGER)})
_SUMMARY = choice("auto", "concise", "detailed")
_REASONING = record(
    {},
    {
        "effort": choice("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        "summary": _SUMMARY,
        "generate_summary": _SUMMARY,
        "context": choice("auto", "current_turn", "all_turns"),
        "mode": string(),
    },
)
_FORMAT = record(
    {"name": string(non_empty=True, at_most=64, pattern="[a-zA-Z0-9_-]+"), "schema": json_object},
    {"description": string(), "strict": boolean},
)
_TEXT = record(
    {},
    {
        "format": tagged(
            {"text": record({}), "json_object": record({}), "json_schema": _json_schema}
        ),
        "verbosity": choice("low", "medium", "high"),
    },
)
_INCLUDE = array(
    choice(
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
    )
)

_PARAMETERS: dict[str, Check] = {
    "model": string(non_empty=True, at_most=512),
    "instructions": string(),
    "previous_response_id": _response_id,
    "conversation": _conversation,
    "store": boolean,
    "background": boolean,
    "stream": boolean,
    "stream_options": record({}, {"include_obfuscation": boolean}),
    "include": _INCLUDE,
    "tools": tools,
    "tool_choice": tool_choice,
    "parallel_tool_calls": boolean,
    "max_tool_calls": integer(1, _MAX_INTEGER),
    "max_output_tokens": integer(16, _MAX_INTEGER),
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "top_logprobs": integer(0, 20),
    "text": _TEXT,
    "reasoning": _reasoning,
    "truncation": choice("auto", "disabled"),
    "context_management": _context_management,
    "metadata": metadata,
    "service_tier": choice("auto", "default", "flex", "priority", "fast", "scale", "ultrafast"),
    "user": string(),
    "safety_identifier": string(at_most=128),
    "prompt_cache_key": string(),
    "cache": _cache,
    "prompt": _prompt,
}
"""name -> check, for everything but `input`, whose check makes ids."""

_IGNORED = frozenset(
    (
        *(
            "access_programs",
            "image",
            "moderation",
            "prompt_cache_options",
            "prompt_cache_retention",
        ),
        "client_metadata",  # codex sends it
    )
)

_CHAT_NAMES = {
    "messages": "'input'",
    "response_format": "'text.format'",
    "max_tokens": "'max_output_tokens'",
    "max_completion_tokens": "'max_output_tokens'",
    "functions": "'tools'",
    "function_call": "'tool_choice'",
    "reasoning_effort": "'reasoning.effort'",
    "verbosity": "'text.verbosity'",
    "logprobs": "'include' with 'message.output_text.logprobs', and 'top_logprobs'",
}
"""Chat Completions' names -> ours: whoever sends them should not have to search."""
