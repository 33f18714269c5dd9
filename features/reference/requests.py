"""The bodies of requests, and the items and tools as they are stored: read from the parser's checks
(models/wire/checks)."""

from collections.abc import Collection, Mapping

from features.batches.lines import ENDPOINTS
from features.files.objects import LONGEST_LIFETIME, SHORTEST_LIFETIME, UPLOADED
from features.files.uploads import MAX_PARTS
from features.reference import meaning
from features.retrieval import document as retrieval
from models.wire.api_schema import (
    NULL,
    Schema,
    SchemaScope,
    const,
    nullable,
    object_schema,
    reference,
)
from models.wire.checks.basic import Check
from models.wire.checks.parameters import (
    IGNORED_PARAMETERS,
    METADATA,
    NATIVE_PARAMETERS,
    PARAMETERS,
)
from models.wire.conversation import MAX_ADDED_ITEMS
from models.wire.items import input_schema, item_schemas
from models.wire.response import (
    ECHOED_AS_NULL,
    FORMAT_FIELDS_ECHOED_AS_NULL,
    ResponseFacts,
    response_object,
)
from web.routes import compact, input_tokens

_REQUIRED = ("model", "input")
_WITH_DEFAULT = (
    *("background", "store", "stream", "parallel_tool_calls", "temperature", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "truncation"),
    *("tools", "tool_choice", "metadata"),
)
"""Parameters whose default is shown in the Response."""


def request_parameters(*, native: bool) -> Mapping[str, Check]:
    """Name -> check. `native`: a configured upstream supports the Responses API."""
    return NATIVE_PARAMETERS if native else PARAMETERS


def components(
    sent: SchemaScope, stored: SchemaScope, passthrough: Collection[str], *, native: bool
) -> dict[str, Schema]:
    """The bodies of all requests, and the input items as they are listed.

    Adds the components that these refer to to the scopes. `passthrough`: see UpstreamSettings.
    """
    parameters = request_parameters(native=native)
    return {
        "CreateResponse": _create_body(sent, parameters, passthrough),
        **_conversation_bodies(sent),
        **_compact_and_count_bodies(sent, parameters),
        **_proxied_bodies(),
        "CreateFile": _CREATE_FILE,
        "CreateUpload": _CREATE_UPLOAD,
        "AddUploadPart": object_schema({"data": {"type": "string", "format": "binary"}}),
        "CompleteUpload": object_schema(
            {
                "part_ids": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_PARTS,
                    "uniqueItems": True,
                    "items": {"type": "string", "pattern": "^part_[0-9a-f]{32}$"},
                }
            },
            {"md5": nullable({"type": "string"})},
        ),
        "CreateBatch": _create_batch(sent),
        **retrieval.request_schemas(sent),
        **item_schemas(sent),
        **item_schemas(stored),
    }


_CREATE_UPLOAD: Schema = object_schema(
    {
        "bytes": {"type": "integer", "minimum": 1},
        "filename": {"type": "string"},
        "mime_type": {"type": "string"},
        "purpose": {"type": "string", "enum": list(UPLOADED)},
    },
    {
        "expires_after": nullable(
            object_schema(
                {
                    "anchor": const("created_at"),
                    "seconds": {
                        "type": "integer",
                        "minimum": SHORTEST_LIFETIME,
                        "maximum": LONGEST_LIFETIME,
                    },
                }
            )
        )
    },
)


def _create_batch(scope: SchemaScope) -> Schema:
    lifetime = {"type": "integer", "minimum": 3600, "maximum": 2_592_000}
    return {
        "type": "object",
        "properties": {
            "input_file_id": {"type": "string"},
            "endpoint": {"type": "string", "enum": list(ENDPOINTS)},
            "completion_window": {"type": "string", "pattern": "^[1-9][0-9]{0,5}[smhd]$"},
            "metadata": nullable(METADATA.schema(scope)),
            "output_expires_after": nullable(
                object_schema({"anchor": const("created_at"), "seconds": lifetime})
            ),
        },
        "required": ["input_file_id", "endpoint", "completion_window"],
        "additionalProperties": NULL,
    }


_CREATE_FILE: Schema = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(UPLOADED)},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": SHORTEST_LIFETIME,
            "maximum": LONGEST_LIFETIME,
        },
    },
    "required": ["file", "purpose"],
    "additionalProperties": False,
}


def _proxied_bodies() -> dict[str, Schema]:
    """The bodies of the endpoints that are forwarded, as far as this server reads them."""
    model = {"type": "string", "description": meaning.PARAMETERS["model"]}
    named: Schema = {"type": "object", "properties": {"model": model}, "required": ["model"]}
    unnamed: Schema = {"type": "object", "properties": {"model": nullable(model)}}
    return {
        "ProxiedRequest": named | {"description": meaning.PROXIED_BODY},
        "ProxiedForm": named | {"description": meaning.PROXIED_FORM},
        "ProxiedRequestWithDefault": unnamed | {"description": meaning.PROXIED_BODY},
    }


def show_unset_fields(listed_tools: Schema, listed_text: Schema) -> None:
    """Changes the stored tools and the stored `text` to what a Response shows: unset fields of a
    function, and of a format with a schema, are null."""
    _show_as_null(listed_tools["items"], "function", ECHOED_AS_NULL)
    text_format = listed_text["properties"]["format"]
    _show_as_null(text_format, "json_schema", FORMAT_FIELDS_ECHOED_AS_NULL)


def _show_as_null(kinds: Schema, kind: str, names: Collection[str]) -> None:
    for schema in kinds["oneOf"]:
        fields = schema["properties"]
        if fields["type"] == const(kind):
            fields |= {name: nullable(fields[name]) for name in names}
            schema["required"] = [*schema["required"], *names]


def _conversation_bodies(scope: SchemaScope) -> dict[str, Schema]:
    """The bodies of the routes of conversations (models/wire/conversation.py)."""
    items = {
        "type": "array",
        "maxItems": MAX_ADDED_ITEMS,
        "items": reference(f"{scope.prefix}Item"),
        "description": "Their ids must differ.",
    }
    metadata = nullable(METADATA.schema(scope))
    return {
        "CreateConversation": {
            "type": "object",
            "properties": {"items": nullable(items), "metadata": metadata},
        },
        "AddItems": object_schema({"items": {**items, "minItems": 1}}),
        "UpdateConversation": object_schema({"metadata": metadata}),
    }


def _compact_and_count_bodies(
    scope: SchemaScope, parameters: Mapping[str, Check]
) -> dict[str, Schema]:
    """The bodies of the two routes that accept some of the parameters of a create request."""
    compacting = [name for name in compact.SUPPORTED_PARAMETERS if name in ("input", *parameters)]
    ignored = _described(set(compact.SUPPORTED_PARAMETERS) - {*compacting}, meaning.IGNORED)
    personality = {"personality": nullable(input_tokens.PERSONALITY.schema(scope))}
    compact_fields = _parameter_schemas(scope, parameters, compacting)
    count_fields = _parameter_schemas(scope, parameters, input_tokens.SUPPORTED_PARAMETERS)
    input_or_previous = [
        {"required": [name], "properties": {name: {"not": NULL}}}
        for name in ("input", "previous_response_id")
    ]
    return {
        "CompactResponse": {
            **_body({**compact_fields, **ignored}),
            "required": ["model"],
            "anyOf": input_or_previous,
        },
        "CountInputTokens": _body({**count_fields, **personality}),
    }


def _create_body(
    scope: SchemaScope, parameters: Mapping[str, Check], passthrough: Collection[str]
) -> Schema:
    fields = _parameter_schemas(scope, parameters, (*_REQUIRED, *parameters), required=_REQUIRED)
    defaults = default_response() | {"stream": False}
    for name in _WITH_DEFAULT:
        fields[name]["default"] = defaults[name]
    fields |= _described(IGNORED_PARAMETERS - parameters.keys(), meaning.IGNORED)
    fields |= _described(passthrough, meaning.PASSTHROUGH)
    return {**_body(fields), "description": meaning.CREATE_BODY, "required": list(_REQUIRED)}


def default_response() -> Schema:
    """The Response to a request without optional parameters: it shows every default."""
    facts = ResponseFacts(id="", created_at=0, status="completed", model="", parameters={})
    return response_object(facts, [])


def _parameter_schemas(
    scope: SchemaScope,
    parameters: Mapping[str, Check],
    names: Collection[str],
    required: Collection[str] = (),
) -> dict[str, Schema]:
    fields: dict[str, Schema] = {}
    for name in names:
        schema = input_schema(scope) if name == "input" else parameters[name].schema(scope)
        fields[name] = {
            **(schema if name in required else nullable(schema)),
            "description": meaning.PARAMETERS[name],
        }
    return fields


def _described(names: Collection[str], description: str) -> dict[str, Schema]:
    """Fields that take any value."""
    return {name: {"description": description} for name in sorted(names)}


def _body(fields: Mapping[str, Schema]) -> Schema:
    """An object in which unknown fields must be null."""
    return {"type": "object", "properties": dict(fields), "additionalProperties": NULL}
