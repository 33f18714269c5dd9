"""The bodies of requests of the core: read from the parser's checks (models/wire/checks)."""

from collections.abc import Collection, Mapping

from features.reference import meaning
from features.reference.schemas import Deployment
from models.wire.api_schema import NULL, Schema, SchemaScope, nullable
from models.wire.checks.basic import Check
from models.wire.checks.parameters import IGNORED_PARAMETERS, NATIVE_PARAMETERS, PARAMETERS
from models.wire.items import input_schema
from models.wire.response import ResponseFacts, response_object
from web.routes import compact, input_tokens

_REQUIRED = ("model", "input")
_WITH_DEFAULT = (
    *("background", "store", "stream", "parallel_tool_calls", "temperature", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "truncation"),
    *("tools", "tool_choice", "metadata"),
)
"""Parameters whose default is shown in the Response."""


def components(deployment: Deployment) -> dict[str, Schema]:
    """The bodies of a create, of a compaction and of a count, which accept some of the parameters
    of a create."""
    scope, parameters = deployment.sent, request_parameters(native=deployment.native)
    compacting = [name for name in compact.SUPPORTED_PARAMETERS if name in ("input", *parameters)]
    compact_fields = _parameter_schemas(scope, parameters, compacting)
    compact_fields |= _described(set(compact.SUPPORTED_PARAMETERS) - {*compacting}, meaning.IGNORED)
    count_fields = _parameter_schemas(scope, parameters, input_tokens.SUPPORTED_PARAMETERS)
    count_fields["personality"] = nullable(input_tokens.PERSONALITY.schema(scope))
    input_or_previous = [
        {"required": [name], "properties": {name: {"not": NULL}}}
        for name in ("input", "previous_response_id")
    ]
    return {
        "CreateResponse": _create_body(scope, parameters, deployment.passthrough),
        "CompactResponse": {
            **_body(compact_fields),
            "required": ["model"],
            "anyOf": input_or_previous,
        },
        "CountInputTokens": _body(count_fields),
    }


def request_parameters(*, native: bool) -> Mapping[str, Check]:
    """Name -> check. `native`: a configured upstream supports the Responses API."""
    return NATIVE_PARAMETERS if native else PARAMETERS


def default_response() -> Schema:
    """The Response to a request without optional parameters: it shows every default."""
    facts = ResponseFacts(id="", created_at=0, status="completed", model="", parameters={})
    return response_object(facts, [])


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
