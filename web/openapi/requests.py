"""What a create request may hold, and the items and tools it is kept as: read from the very checks that decide (models/wire)."""

# ruff: noqa: SLF001 - the tables that decide are nobody's business but the parser's and its reader's, which this is

from collections.abc import Callable, Collection, Mapping

from models.wire import items, mcp, request, tools
from models.wire.checks import Check
from models.wire.conversation import MAX_ADDED_ITEMS
from models.wire.response import ECHOED_AS_NULL, ResponseFacts, response_object
from web.openapi.meaning import PARAMETERS
from web.openapi.shapes import (
    Schema,
    SchemaReader,
    const,
    nullable,
    object_schema,
    reference,
    with_type,
)
from web.routes import compact, input_tokens

_REQUIRED = ("model", "input")
_WITH_DEFAULT = (
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

_NULL: Schema = {"type": "null"}
_ASSISTANT = "assistant"
_USABLE_URL = "^(https://|http://|data:)"


def input_reader() -> SchemaReader:
    """Checks read as what a client may send."""
    return SchemaReader(nulls=True, prefix="Input", custom_schemas=_CUSTOM_SCHEMAS)


def stored_reader() -> SchemaReader:
    """Checks read as what is stored, listed and echoed: defaults filled in, nulls and unknown keys left out."""
    return SchemaReader(nulls=False, prefix="Listed", custom_schemas=_CUSTOM_SCHEMAS)


def components(passthrough: Collection[str], *, native: bool) -> dict[str, Schema]:
    """Every schema of a create request and of the input items that are listed. `passthrough`: see UpstreamSettings; `native`: there is an
    upstream that runs tools of its own."""
    tools_check = tools._NATIVE_TOOLS if native else tools._TOOLS
    input_schemas, stored_schemas = input_reader(), stored_reader()
    return {
        "CreateResponse": _create(input_schemas, passthrough),
        **_conversation_bodies(input_schemas),
        **_compact_and_count_bodies(input_schemas),
        "ChatCompletion": {
            "type": "object",
            "description": "A body of Chat Completions. Only `model` is looked at, to find the upstream; everything else is the upstream's to judge.",
            "properties": {"model": {"type": "string", "description": PARAMETERS["model"]}},
            "required": ["model"],
        },
        **_items(input_schemas, items._KINDS),
        **_items(
            stored_schemas,
            {kind: known for kind, known in items._KINDS.items() if kind != "item_reference"},
        ),
        **{
            f"{way.prefix}{name}": _inline(way, check)
            for way in (input_schemas, stored_schemas)
            for check, name in _COMPONENT_NAMES.items()
        },
        "InputTools": _inline(input_schemas, tools_check),
        "ListedTools": _echoed_tools(stored_schemas, tools_check),
    }


def _conversation_bodies(reader: SchemaReader) -> dict[str, Schema]:
    """The bodies of the routes of conversations (models/wire/conversation.py)."""
    items = {
        "type": "array",
        "maxItems": MAX_ADDED_ITEMS,
        "items": reader.reference("Item"),
        "description": "Their ids must differ.",
    }
    metadata = nullable(parameter("metadata", reader))
    some = {
        "type": "object",
        "properties": {"items": {**items, "minItems": 1}},
        "required": ["items"],
    }
    both = {"type": "object", "properties": {"items": nullable(items), "metadata": metadata}}
    return {
        "CreateConversation": both,
        "AddItems": some,
        "UpdateConversation": object_schema({"metadata": metadata}),
    }


def _compact_and_count_bodies(reader: SchemaReader) -> dict[str, Schema]:
    """The bodies of the routes beside the create: what they take of its parameters, and what means nothing to them."""
    own = {"personality": nullable(reader.schema(input_tokens.PERSONALITY))}
    ignored = {
        name: {"description": "Documented by OpenAI; accepted and ignored."}
        for name in compact.IGNORED_PARAMETERS
    }
    either = [
        {"required": [name], "properties": {name: {"not": _NULL}}}
        for name in ("input", "previous_response_id")
    ]
    return {
        "CompactResponse": {
            **_body_schema(reader, compact.SUPPORTED_PARAMETERS, ignored),
            "required": ["model"],
            "anyOf": either,
        },
        "CountInputTokens": _body_schema(reader, input_tokens.SUPPORTED_PARAMETERS, own),
    }


def _body_schema(reader: SchemaReader, names: Collection[str], own: Mapping[str, Schema]) -> Schema:
    fields: dict[str, Schema] = {}
    for name in names:
        schema = _input(reader) if name == "input" else parameter(name, reader)
        fields[name] = {**nullable(schema), "description": PARAMETERS[name]}
    return {"type": "object", "properties": {**fields, **own}, "additionalProperties": _NULL}


def parameter(name: str, reader: SchemaReader) -> Schema:
    """One parameter of a create request, without null."""
    return reader.schema(request._PARAMETERS[name])


def include_values() -> Schema:
    """The values of `include`, in a body as in a query."""
    values: Schema = input_reader().schema(request._INCLUDE)["items"]
    return values


def _create(reader: SchemaReader, passthrough: Collection[str]) -> Schema:
    defaults = response_object(
        ResponseFacts(id="", created_at=0, status="completed", model="", parameters={}), []
    ) | {"stream": False}
    fields: dict[str, Schema] = {}
    for name in ("model", "input", *request._PARAMETERS):
        schema = _input(reader) if name == "input" else parameter(name, reader)
        fields[name] = {
            **(schema if name in _REQUIRED else nullable(schema)),
            "description": PARAMETERS[name],
        }
        if name in _WITH_DEFAULT:
            fields[name]["default"] = defaults[name]
    ignored = {
        "description": "Documented by OpenAI or sent by common clients; accepted and ignored."
    }
    passthrough_schema = {"description": "Handed on to this deployment's upstream as it is."}
    fields |= dict.fromkeys(sorted(request._IGNORED), ignored) | dict.fromkeys(
        sorted(passthrough), passthrough_schema
    )
    return {
        "type": "object",
        "description": (
            "null means absent, for every parameter. Unknown parameters are refused (unless they are null), unknown keys inside items "
            "and tools are ignored."
        ),
        "properties": fields,
        "required": list(_REQUIRED),
        "additionalProperties": _NULL,
    }


def _input(reader: SchemaReader) -> Schema:
    text = {"type": "string", "maxLength": items.MAX_INPUT_STRING}
    return {"anyOf": [text, {"type": "array", "items": reader.reference("Item")}]}


def _items(reader: SchemaReader, kinds: Mapping[str, tuple[str, Check]]) -> dict[str, Schema]:
    """A component for each kind of item, and one for any of them."""
    by_name = {
        f"{reader.prefix}{_title(kind)}": _item(kind, check, reader)
        for kind, (_, check) in kinds.items()
    }
    return {f"{reader.prefix}Item": {"anyOf": [reference(name) for name in by_name]}, **by_name}


def _echoed_tools(reader: SchemaReader, tools_check: Check) -> Schema:
    """The tools as the Response shows them: of a function, what was not given is null (models/wire/response.py)."""
    shape = _inline(reader, tools_check)
    for tool in shape["items"]["oneOf"]:
        if tool["properties"]["type"] == const("function"):
            fields = tool["properties"]
            fields |= {name: nullable(fields[name]) for name in ECHOED_AS_NULL}
            tool["required"] = [*tool["required"], *ECHOED_AS_NULL]
    return shape


def _item(kind: str, check: Check, reader: SchemaReader) -> Schema:
    shape = reader.schema(check)
    properties, required = shape["properties"], shape.get("required", [])
    if not reader.nulls:
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
            "properties": {"type": _NULL},
            "not": {"anyOf": [{"required": ["role"]}, {"required": ["content"]}]},
        }
        return {
            **shape,
            "properties": {"type": nullable(const(kind)), **properties},
            "anyOf": [_requires_type(kind), untyped],
        }
    shape = {**shape, "properties": {"id": nullable({"type": "string"}), **properties}}
    if kind == "message":
        return {
            **shape,
            "properties": {
                "type": {"type": ["string", "null"], "enum": [kind, None]},
                **shape["properties"],
            },
        }
    return with_type(shape, kind)


def _requires_type(kind: str) -> Schema:
    return {"properties": {"type": const(kind)}, "required": ["type"]}


def _title(kind: str) -> str:
    """`function_call` -> `FunctionCall`."""
    return "".join(word.capitalize() for word in kind.split("_"))


def _inline(reader: SchemaReader, check: Check) -> Schema:
    """The schema of a check that has a component of its own: what stands in that component."""
    inside = {known: own for known, own in reader.custom_schemas.items() if known is not check}
    return SchemaReader(reader.nulls, reader.prefix, inside).schema(check)


# Checks that are functions of their own.


def _message(reader: SchemaReader) -> Schema:
    shape = reader.schema(items._MESSAGE)
    others = [role for role in items._ROLES if role != _ASSISTANT]
    phase = reader.schema(items._PHASE)["properties"]
    by_role = [
        {
            "properties": {
                "role": {"enum": others},
                "content": _text_or(reader, reader.schema(items._INPUT_CONTENT)),
            }
        },
        {
            "properties": {
                "role": const(_ASSISTANT),
                "content": _text_or(reader, reader.schema(items._OUTPUT_CONTENT)),
                **phase,
            }
        },
    ]
    return {**shape, "anyOf": by_role}


def _text_or(reader: SchemaReader, parts: Schema) -> Schema:
    """A message's text may be sent as a string; it is kept as parts."""
    return {"anyOf": [{"type": "string"}, parts]} if reader.nulls else parts


def _result(reader: SchemaReader) -> Schema:
    return {"anyOf": [{"type": "string"}, reader.schema(items._RESULT_CONTENT)]}


def _image(reader: SchemaReader) -> Schema:
    shape = reader.schema(items._IMAGE)
    fields = {
        **shape["properties"],
        "image_url": {"type": "string", "pattern": _USABLE_URL},
        "file_id": _NULL,
    }
    if reader.nulls:
        return {**shape, "properties": fields, "required": ["image_url"]}
    del fields["file_id"]
    return {**shape, "properties": fields, "required": ["detail", "image_url"]}


def _file(reader: SchemaReader) -> Schema:
    shape = reader.schema(items._FILE)
    fields = {name: schema for name, schema in shape["properties"].items() if name != "file_id"}
    if reader.nulls:
        fields["file_id"] = _NULL
    ways = ("file_data", "file_url")
    text = {"type": "string"}
    exactly_one = [
        {"properties": {way: text, **dict.fromkeys({*ways} - {way}, _NULL)}, "required": [way]}
        for way in ways
    ]
    return {**shape, "properties": fields, "anyOf": exactly_one}


def _output_text(reader: SchemaReader) -> Schema:
    shape = reader.schema(items._OUTPUT_TEXT)
    return shape if reader.nulls else {**shape, "required": ["annotations", *shape["required"]]}


def _reasoning_item(reader: SchemaReader) -> Schema:
    shape = reader.schema(items._REASONING)
    return shape if reader.nulls else {**shape, "required": ["summary"]}


def _local_shell_output(reader: SchemaReader) -> Schema:
    shape = reader.schema(items._LOCAL_SHELL_OUTPUT)
    if not reader.nulls:
        return {**shape, "required": [*shape["required"], "call_id"]}
    either = [
        {"properties": {name: reader.schema(items._CALL_ID)}, "required": [name]}
        for name in ("call_id", "id")
    ]
    return {**shape, "anyOf": either}


def _tools(reader: SchemaReader) -> Schema:
    return reader.schema(tools._TOOLS)


def _more_tools(reader: SchemaReader) -> Schema:
    return reader.schema(tools._ADDED_TOOLS)


def _tool_choice(reader: SchemaReader) -> Schema:
    return {"anyOf": [reader.schema(tools._CHOICE_WORD), reader.schema(tools._CHOICE_OBJECT)]}


def _mcp_tool(reader: SchemaReader) -> Schema:
    shape = reader.schema(mcp._MCP_FIELDS)
    fields = shape["properties"]
    if reader.nulls:
        return {
            **shape,
            "properties": {**fields, **dict.fromkeys(mcp._UNSUPPORTED_ADDRESSES, _NULL)},
        }
    return {
        **shape,
        "properties": {
            name: field
            for name, field in fields.items()
            if name not in ("authorization", "headers")
        },
    }


def _allowed_tools(reader: SchemaReader) -> Schema:
    return {"anyOf": [reader.schema(mcp._NAMES), reader.schema(mcp._FILTER)]}


def _require_approval(reader: SchemaReader) -> Schema:
    return {"anyOf": [reader.schema(mcp._WORD), reader.schema(mcp._BY_TOOL)]}


def _authorization(reader: SchemaReader) -> Schema:
    return {**reader.schema(mcp._TOKEN), "pattern": f"^(?:{mcp._HEADER_VALUE.pattern})$"}


def _headers(reader: SchemaReader) -> Schema:
    return {
        "type": "object",
        "maxProperties": mcp._MAX_HEADERS,
        "propertyNames": {"pattern": f"^(?:{mcp._HEADER_NAME.pattern})$"},
        "additionalProperties": reader.optional(
            {"type": "string", "pattern": f"^(?:{mcp._HEADER_VALUE.pattern})$"}
        ),
    }


def _reasoning(reader: SchemaReader) -> Schema:
    shape = reader.schema(request._REASONING)
    fields = {
        name: schema
        for name, schema in shape["properties"].items()
        if reader.nulls or name != "generate_summary"
    }
    return {**shape, "properties": fields}


def _metadata(reader: SchemaReader) -> Schema:
    return {
        "type": "object",
        "maxProperties": 16,
        "propertyNames": {"maxLength": 64},
        "additionalProperties": reader.optional(reader.schema(request._METADATA_VALUE)),
    }


def _response_id(_reader: SchemaReader) -> Schema:
    return {"type": "string", "pattern": f"^{request._ID.pattern}$"}


def _cache(reader: SchemaReader) -> Schema:
    return {"anyOf": [{"type": "boolean"}, reader.schema(request._CACHE)]}


def _conversation(reader: SchemaReader) -> Schema:
    return {"anyOf": [_response_id(reader), reader.schema(request._CONVERSATION)]}


def _passthrough(_reader: SchemaReader) -> Schema:
    return {
        "type": "object",
        "description": "Handed on to the upstream as it is, where the model's upstream speaks the Responses API.",
    }


def _context_management(reader: SchemaReader) -> Schema:
    return {**reader.schema(request._CONTEXT_EDITS), "minItems": 1}


def _any(_reader: SchemaReader) -> Schema:
    return {}


def _unsupported(_reader: SchemaReader) -> Schema:
    return _NULL


def _component(name: str) -> Callable[[SchemaReader], Schema]:
    return lambda reading: reading.reference(name)


_COMPONENT_NAMES: dict[Check, str] = {
    items._INPUT_CONTENT: "Content",
    items._OUTPUT_CONTENT: "AssistantContent",
    items._RESULT_CONTENT: "ResultContent",
    tools._TOOLS: "Tools",
    tools._ADDED_TOOLS: "AddedTools",
    tools._CHOICE_OBJECT: "ToolChoiceObject",
    request._TEXT: "TextSettings",
}
"""Checks that are worth a component -> its name after the reading's prefix."""

_CUSTOM_SCHEMAS: dict[Check, Callable[[SchemaReader], Schema]] = {
    **{check: _component(name) for check, name in _COMPONENT_NAMES.items()},
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
    tools._passthrough_tool: _passthrough,
    tools._function: lambda reading: reading.schema(tools._FUNCTION),
    tools.tools: _tools,
    tools.item_tools: _more_tools,
    tools.tool_choice: _tool_choice,
    request._reasoning: _reasoning,
    request._json_schema: lambda reading: reading.schema(request._FORMAT),
    request.metadata: _metadata,
    request._response_id: _response_id,
    request._context_management: _context_management,
    request._conversation: _conversation,
    request._cache: _cache,
    request._prompt: _unsupported,
}
