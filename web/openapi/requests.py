"""What a create request may hold, and the items and tools it is kept as: read from the very checks that decide (models/wire)."""

# ruff: noqa: SLF001 - the tables that decide are nobody's business but the parser's and its reader's, which this is

from collections.abc import Callable, Collection, Mapping

from models.wire import items, mcp, request, tools
from models.wire.checks import Check
from models.wire.conversation import MOST_ITEMS
from models.wire.response import ECHOED_AS_NULL, ResponseFacts, response_object
from web.openapi.meaning import PARAMETERS
from web.openapi.shapes import Reading, Schema, const, or_null, reference, thing, with_type
from web.routes import compact, input_tokens

_REQUIRED = ("model", "input")
_DEFAULTED = (
    *(
        "background",
        "store",
        "stream",
        "parallel_tool_calls",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
    ),
    *("top_logprobs", "truncation", "tools", "tool_choice", "metadata"),
)
"""Parameters whose default is what the Response then says."""

_NOTHING: Schema = {"type": "null"}
_ASSISTANT = "assistant"
_USABLE_URL = "^(https://|http://|data:)"


def asked() -> Reading:
    """Checks read as what a client may send."""
    return Reading(nulls=True, prefix="Input", own=_OWN)


def kept() -> Reading:
    """Checks read as what is stored, listed and echoed: defaults filled in, nulls and unknown keys left out."""
    return Reading(nulls=False, prefix="Listed", own=_OWN)


def components(passthrough: Collection[str], *, native: bool) -> dict[str, Schema]:
    """Every schema of a create request and of the input items that are listed. `passthrough`: see UpstreamSettings; `native`: there is an
    upstream that runs tools of its own."""
    offered = tools._NATIVE_TOOLS if native else tools._TOOLS
    sent, listed = asked(), kept()
    return {
        "CreateResponse": _create(sent, passthrough),
        **_conversations(sent),
        **_countings(sent),
        "ChatCompletion": {
            "type": "object",
            "description": "A body of Chat Completions. Only `model` is looked at, to find the upstream; everything else is the upstream's to judge.",
            "properties": {"model": {"type": "string", "description": PARAMETERS["model"]}},
            "required": ["model"],
        },
        **_items(sent, items._KINDS),
        **_items(
            listed,
            {kind: known for kind, known in items._KINDS.items() if kind != "item_reference"},
        ),
        **{
            f"{way.prefix}{name}": _unnamed(way, check)
            for way in (sent, listed)
            for check, name in _NAMED.items()
        },
        "InputTools": _unnamed(sent, offered),
        "ListedTools": _echoed_tools(listed, offered),
    }


def _conversations(reading: Reading) -> dict[str, Schema]:
    """The bodies of the routes of conversations (models/wire/conversation.py)."""
    items = {
        "type": "array",
        "maxItems": MOST_ITEMS,
        "items": reading.reference("Item"),
        "description": "Their ids must differ.",
    }
    metadata = or_null(parameter("metadata", reading))
    some = {
        "type": "object",
        "properties": {"items": {**items, "minItems": 1}},
        "required": ["items"],
    }
    both = {"type": "object", "properties": {"items": or_null(items), "metadata": metadata}}
    return {
        "CreateConversation": both,
        "AddItems": some,
        "UpdateConversation": thing({"metadata": metadata}),
    }


def _countings(reading: Reading) -> dict[str, Schema]:
    """The bodies of the routes beside the create: what they take of its parameters, and what means nothing to them."""
    own = {"personality": or_null(reading.schema(input_tokens.PERSONALITY))}
    ignored = {
        name: {"description": "Documented by OpenAI; accepted and ignored."}
        for name in compact.IGNORED
    }
    either = [
        {"required": [name], "properties": {name: {"not": _NOTHING}}}
        for name in ("input", "previous_response_id")
    ]
    return {
        "CompactResponse": {
            **_taken(reading, compact.TAKEN, ignored),
            "required": ["model"],
            "anyOf": either,
        },
        "CountInputTokens": _taken(reading, input_tokens.TAKEN, own),
    }


def _taken(reading: Reading, names: Collection[str], own: Mapping[str, Schema]) -> Schema:
    fields: dict[str, Schema] = {}
    for name in names:
        schema = _input(reading) if name == "input" else parameter(name, reading)
        fields[name] = {**or_null(schema), "description": PARAMETERS[name]}
    return {"type": "object", "properties": {**fields, **own}, "additionalProperties": _NOTHING}


def parameter(name: str, reading: Reading) -> Schema:
    """One parameter of a create request, without null."""
    return reading.schema(request._PARAMETERS[name])


def include_values() -> Schema:
    """The values of `include`, in a body as in a query."""
    values: Schema = asked().schema(request._INCLUDE)["items"]
    return values


def _create(reading: Reading, passthrough: Collection[str]) -> Schema:
    defaults = response_object(
        ResponseFacts(id="", created_at=0, status="completed", model="", parameters={}), []
    ) | {"stream": False}
    fields: dict[str, Schema] = {}
    for name in ("model", "input", *request._PARAMETERS):
        schema = _input(reading) if name == "input" else parameter(name, reading)
        fields[name] = {
            **(schema if name in _REQUIRED else or_null(schema)),
            "description": PARAMETERS[name],
        }
        if name in _DEFAULTED:
            fields[name]["default"] = defaults[name]
    ignored = {
        "description": "Documented by OpenAI or sent by common clients; accepted and ignored."
    }
    handed_on = {"description": "Handed on to this deployment's upstream as it is."}
    fields |= dict.fromkeys(sorted(request._IGNORED), ignored) | dict.fromkeys(
        sorted(passthrough), handed_on
    )
    return {
        "type": "object",
        "description": (
            "null means absent, for every parameter. Unknown parameters are refused (unless they are null), unknown keys inside items "
            "and tools are ignored."
        ),
        "properties": fields,
        "required": list(_REQUIRED),
        "additionalProperties": _NOTHING,
    }


def _input(reading: Reading) -> Schema:
    text = {"type": "string", "maxLength": items.LONGEST_STRING}
    return {"anyOf": [text, {"type": "array", "items": reading.reference("Item")}]}


def _items(reading: Reading, kinds: Mapping[str, tuple[str, Check]]) -> dict[str, Schema]:
    """A component for each kind of item, and one for any of them."""
    named = {
        f"{reading.prefix}{_title(kind)}": _item(kind, check, reading)
        for kind, (_, check) in kinds.items()
    }
    return {f"{reading.prefix}Item": {"anyOf": [reference(name) for name in named]}, **named}


def _echoed_tools(reading: Reading, offered: Check) -> Schema:
    """The tools as the Response shows them: of a function, what was not given is null (models/wire/response.py)."""
    shape = _unnamed(reading, offered)
    for tool in shape["items"]["oneOf"]:
        if tool["properties"]["type"] == const("function"):
            fields = tool["properties"]
            fields |= {name: or_null(fields[name]) for name in ECHOED_AS_NULL}
            tool["required"] = [*tool["required"], *ECHOED_AS_NULL]
    return shape


def _item(kind: str, check: Check, reading: Reading) -> Schema:
    shape = reading.schema(check)
    properties, required = shape["properties"], shape.get("required", [])
    if not reading.nulls:
        fields = {
            "id": {"type": "string"},
            "type": const(kind),
            "status": {"type": "string"},
            **properties,
        }
        return {
            **shape,
            "properties": fields,
            "required": list(dict.fromkeys(("id", "type", "status", *required))),
        }
    if kind == "item_reference":
        untyped = {
            "properties": {"type": _NOTHING},
            "not": {"anyOf": [{"required": ["role"]}, {"required": ["content"]}]},
        }
        return {
            **shape,
            "properties": {"type": or_null(const(kind)), **properties},
            "anyOf": [_typed(kind), untyped],
        }
    shape = {**shape, "properties": {"id": or_null({"type": "string"}), **properties}}
    if kind == "message":
        return {
            **shape,
            "properties": {
                "type": {"type": ["string", "null"], "enum": [kind, None]},
                **shape["properties"],
            },
        }
    return with_type(shape, kind)


def _typed(kind: str) -> Schema:
    return {"properties": {"type": const(kind)}, "required": ["type"]}


def _title(kind: str) -> str:
    """`function_call` -> `FunctionCall`."""
    return "".join(word.capitalize() for word in kind.split("_"))


def _unnamed(reading: Reading, check: Check) -> Schema:
    """The schema of a check that has a component of its own: what stands in that component."""
    inside = {known: own for known, own in reading.own.items() if known is not check}
    return Reading(reading.nulls, reading.prefix, inside).schema(check)


# Checks that are functions of their own.


def _message(reading: Reading) -> Schema:
    shape = reading.schema(items._MESSAGE)
    others = [role for role in items._ROLES if role != _ASSISTANT]
    phase = reading.schema(items._PHASE)["properties"]
    spoken = [
        {
            "properties": {
                "role": {"enum": others},
                "content": _text_or(reading, reading.schema(items._INPUT_CONTENT)),
            }
        },
        {
            "properties": {
                "role": const(_ASSISTANT),
                "content": _text_or(reading, reading.schema(items._OUTPUT_CONTENT)),
                **phase,
            }
        },
    ]
    return {**shape, "anyOf": spoken}


def _text_or(reading: Reading, parts: Schema) -> Schema:
    """A message's text may be sent as a string; it is kept as parts."""
    return {"anyOf": [{"type": "string"}, parts]} if reading.nulls else parts


def _result(reading: Reading) -> Schema:
    return {"anyOf": [{"type": "string"}, reading.schema(items._RESULT_CONTENT)]}


def _image(reading: Reading) -> Schema:
    shape = reading.schema(items._IMAGE)
    fields = {
        **shape["properties"],
        "image_url": {"type": "string", "pattern": _USABLE_URL},
        "file_id": _NOTHING,
    }
    if reading.nulls:
        return {**shape, "properties": fields, "required": ["image_url"]}
    del fields["file_id"]
    return {**shape, "properties": fields, "required": ["detail", "image_url"]}


def _file(reading: Reading) -> Schema:
    shape = reading.schema(items._FILE)
    fields = {name: schema for name, schema in shape["properties"].items() if name != "file_id"}
    if reading.nulls:
        fields["file_id"] = _NOTHING
    ways = ("file_data", "file_url")
    text = {"type": "string"}
    exactly_one = [
        {"properties": {way: text, **dict.fromkeys({*ways} - {way}, _NOTHING)}, "required": [way]}
        for way in ways
    ]
    return {**shape, "properties": fields, "anyOf": exactly_one}


def _output_text(reading: Reading) -> Schema:
    shape = reading.schema(items._OUTPUT_TEXT)
    return shape if reading.nulls else {**shape, "required": ["annotations", *shape["required"]]}


def _reasoning_item(reading: Reading) -> Schema:
    shape = reading.schema(items._REASONING)
    return shape if reading.nulls else {**shape, "required": ["summary"]}


def _local_shell_output(reading: Reading) -> Schema:
    shape = reading.schema(items._LOCAL_SHELL_OUTPUT)
    if not reading.nulls:
        return {**shape, "required": [*shape["required"], "call_id"]}
    either = [
        {"properties": {name: reading.schema(items._CALL_ID)}, "required": [name]}
        for name in ("call_id", "id")
    ]
    return {**shape, "anyOf": either}


def _tools(reading: Reading) -> Schema:
    return reading.schema(tools._TOOLS)


def _more_tools(reading: Reading) -> Schema:
    return reading.schema(tools._ADDED_TOOLS)


def _tool_choice(reading: Reading) -> Schema:
    return {"anyOf": [reading.schema(tools._CHOICE_WORD), reading.schema(tools._CHOICE_OBJECT)]}


def _mcp_tool(reading: Reading) -> Schema:
    shape = reading.schema(mcp._KEPT)
    fields = shape["properties"]
    if reading.nulls:
        return {**shape, "properties": {**fields, **dict.fromkeys(mcp._ELSEWHERE, _NOTHING)}}
    return {
        **shape,
        "properties": {
            name: field
            for name, field in fields.items()
            if name not in ("authorization", "headers")
        },
    }


def _allowed_tools(reading: Reading) -> Schema:
    return {"anyOf": [reading.schema(mcp._NAMES), reading.schema(mcp._FILTER)]}


def _require_approval(reading: Reading) -> Schema:
    return {"anyOf": [reading.schema(mcp._WORD), reading.schema(mcp._BY_TOOL)]}


def _authorization(reading: Reading) -> Schema:
    return {**reading.schema(mcp._TOKEN), "pattern": f"^(?:{mcp._HEADER_VALUE.pattern})$"}


def _headers(reading: Reading) -> Schema:
    return {
        "type": "object",
        "maxProperties": mcp._MOST_HEADERS,
        "propertyNames": {"pattern": f"^(?:{mcp._HEADER_NAME.pattern})$"},
        "additionalProperties": reading.optional(
            {"type": "string", "pattern": f"^(?:{mcp._HEADER_VALUE.pattern})$"}
        ),
    }


def _reasoning(reading: Reading) -> Schema:
    shape = reading.schema(request._REASONING)
    fields = {
        name: schema
        for name, schema in shape["properties"].items()
        if reading.nulls or name != "generate_summary"
    }
    return {**shape, "properties": fields}


def _metadata(reading: Reading) -> Schema:
    return {
        "type": "object",
        "maxProperties": 16,
        "propertyNames": {"maxLength": 64},
        "additionalProperties": reading.optional(reading.schema(request._METADATA_VALUE)),
    }


def _response_id(_reading: Reading) -> Schema:
    return {"type": "string", "pattern": f"^{request._ID.pattern}$"}


def _cache(reading: Reading) -> Schema:
    return {"anyOf": [{"type": "boolean"}, reading.schema(request._CACHE)]}


def _conversation(reading: Reading) -> Schema:
    return {"anyOf": [_response_id(reading), reading.schema(request._CONVERSATION)]}


def _handed_on(_reading: Reading) -> Schema:
    return {
        "type": "object",
        "description": "Handed on to the upstream as it is, where the model's upstream speaks the Responses API.",
    }


def _context_management(reading: Reading) -> Schema:
    return {**reading.schema(request._EDITS), "minItems": 1}


def _any(_reading: Reading) -> Schema:
    return {}


def _refused(_reading: Reading) -> Schema:
    return _NOTHING


def _component(name: str) -> Callable[[Reading], Schema]:
    return lambda reading: reading.reference(name)


_NAMED: dict[Check, str] = {
    items._INPUT_CONTENT: "Content",
    items._OUTPUT_CONTENT: "AssistantContent",
    items._RESULT_CONTENT: "ResultContent",
    tools._TOOLS: "Tools",
    tools._ADDED_TOOLS: "AddedTools",
    tools._CHOICE_OBJECT: "ToolChoiceObject",
    request._TEXT: "TextSettings",
}
"""Checks that are worth a component -> its name after the reading's prefix."""

_OWN: dict[Check, Callable[[Reading], Schema]] = {
    **{check: _component(name) for check, name in _NAMED.items()},
    items._message: _message,
    items._content: _any,
    items._result: _result,
    items._image: _image,
    items._file: _file,
    items._output_text: _output_text,
    items._reasoning: _reasoning_item,
    items._schema: _any,
    mcp.mcp_tool: _mcp_tool,
    mcp._allowed_tools: _allowed_tools,
    mcp._require_approval: _require_approval,
    mcp._authorization: _authorization,
    mcp._headers: _headers,
    items._local_shell_output: _local_shell_output,
    tools._handed_on: _handed_on,
    tools._function: lambda reading: reading.schema(tools._FUNCTION),
    tools.tools: _tools,
    tools.more_tools: _more_tools,
    tools.tool_choice: _tool_choice,
    request._reasoning: _reasoning,
    request._json_schema: lambda reading: reading.schema(request._FORMAT),
    request.metadata: _metadata,
    request._response_id: _response_id,
    request._context_management: _context_management,
    request._conversation: _conversation,
    request._cache: _cache,
    request._prompt: _refused,
}
