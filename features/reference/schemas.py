"""The parts that operations are made of (parameters, bodies, responses, headers), schemas that
several of them need, and those of the official SDK's models."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter

from features.reference.meaning import IDEMPOTENCY_KEY
from models.wire.api_schema import (
    NULL,
    Schema,
    SchemaScope,
    const,
    input_scope,
    nullable,
    object_schema,
    reference,
    stored_scope,
)
from models.wire.checks.basic import Check
from models.wire.checks.parameters import NATIVE_PARAMETERS, PARAMETERS
from web.http.browsers import RATE_HEADERS
from web.http.params import ORDERS, PAGE_SIZE, PAGE_SIZES
from web.idempotency.keys import MAX_KEY_LENGTH

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
STRINGS: Schema = {"type": "array", "items": STRING}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
SECONDS: Schema = {"type": "integer", "description": "Seconds since the epoch."}
OBJECT: Schema = {"type": "object"}
TRUE: Schema = {"type": "boolean", "const": True}
BYTES: Schema = {"type": "string", "format": "binary"}


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the schemas of one document are written for."""

    native: bool
    """a configured upstream supports the Responses API, and runs tools itself"""
    passthrough: Collection[str]
    """see UpstreamSettings"""
    sent: SchemaScope = field(default_factory=input_scope)
    """what clients send"""
    stored: SchemaScope = field(default_factory=stored_scope)
    """what is stored of it, and shown"""

    @property
    def parameters(self) -> Mapping[str, Check]:
        """Of a create: name -> check."""
        return NATIVE_PARAMETERS if self.native else PARAMETERS


def integer(minimum: int, maximum: int) -> Schema:
    """An integer from `minimum` to `maximum`."""
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def text(shortest: int, longest: int) -> Schema:
    """A string of so many characters."""
    return {"type": "string", "minLength": shortest, "maxLength": longest}


def matching(pattern: str) -> Schema:
    """A string that matches the pattern as a whole."""
    return {"type": "string", "pattern": f"^{pattern}$"}


def id_of(prefix: str) -> Schema:
    """An id in the API: the prefix and a UUID."""
    return matching(f"{prefix}[0-9a-f]{{32}}")


def described(schema: Schema, description: str) -> Schema:
    """The schema with a meaning."""
    return {**schema, "description": description}


def array_of(element: Schema, at_least: int = 0, at_most: int | None = None) -> Schema:
    """A list of so many elements."""
    lower = {"minItems": at_least} if at_least else {}
    upper = {} if at_most is None else {"maxItems": at_most}
    return {"type": "array", "items": element, **lower, **upper}


def one_of_texts(values: Iterable[str]) -> Schema:
    """One of these strings."""
    return {"type": "string", "enum": list(values)}


def list_of(element: Schema, /, *, kind: str = "list", **more: Schema) -> Schema:
    """A list in an object, whose `object` is `kind`."""
    return object_schema({"object": const(kind), "data": array_of(element), **more})


def page_of(name: str) -> Schema:
    """A page of objects of the component `name`."""
    edge = nullable(STRING)
    return list_of(reference(name), first_id=edge, last_id=edge, has_more=BOOLEAN)


def numbered_page_of(element: Schema, kind: str, **more: Schema) -> Schema:
    """A page that names the next one."""
    return list_of(element, kind=kind, **more, has_more=BOOLEAN, next_page=nullable(STRING))


def deleted(kind: str, object_id: Schema = STRING) -> Schema:
    """The answer to a DELETE; its `object` is `kind`."""
    return object_schema({"id": object_id, "object": const(kind), "deleted": TRUE})


def strict(required: dict[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """A body without other fields, unless they are null; null is also the same as leaving an
    optional one out."""
    absent = {name: nullable(schema) for name, schema in (optional or {}).items()}
    return {**object_schema(required, absent), "additionalProperties": NULL}


# --- from the SDK ---


def sdk_object(
    model: type[BaseModel], without: Collection[str] = (), /, **changes: Schema
) -> Schema:
    """An object that always has every field of the SDK's model: one that the model may leave out is
    null. `without`: fields that this server never sends. `changes`: fields that it adds, or that
    are narrower than the SDK's."""
    fields = _with_every_field(_schema_of(model))["properties"]
    return object_schema({name: fields[name] for name in fields if name not in without} | changes)


def sdk_item(
    model: type[BaseModel], optional: Mapping[str, Schema] | None = None, /, **changes: Schema
) -> Schema:
    """An object with the fields that the SDK's model requires and those of `changes`, which are
    always there too. `optional`: fields that are absent or have a value, which is never null;
    their schemas go over those of the SDK."""
    schema = _schema_of(model)
    fields = schema["properties"]
    always = {name: fields[name] for name in fields if name in schema["required"]}
    return object_schema(
        always | changes, {name: fields[name] | each for name, each in (optional or {}).items()}
    )


def _schema_of(model: type[BaseModel]) -> Schema:
    schema = TypeAdapter(model).json_schema(mode="serialization")
    return _plain(schema, schema.get("$defs", {}))


_KEPT = ("type", "const", "enum", "required")


def _plain(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """The schema without references, titles, prose, and null in place of an absent field."""
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != NULL]
    if len(kinds) == 1:
        return _plain(kinds[0], definitions)
    plain: Schema = {key: schema[key] for key in _KEPT if key in schema}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            plain[key] = [_plain(each, definitions) for each in schema[key] if each != NULL]
    if "items" in schema:
        plain["items"] = _plain(schema["items"], definitions)
    if isinstance(schema.get("additionalProperties"), dict):
        plain["additionalProperties"] = _plain(schema["additionalProperties"], definitions)
    if "properties" in schema:
        plain["properties"] = {
            name: _field(name, _plain(each, definitions))
            for name, each in schema["properties"].items()
        }
    return plain


def _field(name: str, schema: Schema) -> Schema:
    """The meaning of numbers, which the SDK's models do not have."""
    if schema.get("type") != "integer" or name == "code":
        return schema
    return SECONDS if name.endswith("_at") or name == "created" else COUNT


def _with_every_field(schema: Schema) -> Schema:
    """The object, and those in it, with fields that are null instead of absent."""
    if "properties" not in schema:
        return schema
    always = schema.get("required", ())
    fields = {name: _with_every_field(each) for name, each in schema["properties"].items()}
    return object_schema(
        {name: each if name in always else nullable(each) for name, each in fields.items()}
    )


Json = dict[str, Any]

JSON = "application/json"
FORM = "multipart/form-data"
EVENT_STREAM = "text/event-stream"
ADMIN = "admin"
"""The security scheme of operations for keys of admins only."""


def operation(
    summary: str,
    answer: Json,
    *error_statuses: int,
    others: Mapping[str, Json] | None = None,
    parameters: Sequence[Json] = (),
    body: Json | None = None,
    once: bool = False,
    public: bool = False,
) -> Json:
    """An operation. `answer`: the response of status 200. `error_statuses`: errors that do not
    follow from the key, a body, a query or an id in the path.

    `others`: responses by status, in place of an error of this server. `once`: it makes something
    once for each `Idempotency-Key`. `public`: without an API key.
    """
    always = (500,) if public else (401, 403, 429, 500, 503)
    of_body = () if body is None else (400, 413, 415)
    of_query = (400,) if any(each["in"] == "query" for each in parameters) else ()
    optional: Json = {"requestBody": body, "security": [] if public else None}
    return {
        "summary": summary,
        "parameters": [*((_IDEMPOTENCY_KEY,) if once else ()), *parameters],
        **{name: value for name, value in optional.items() if value is not None},
        "responses": {
            **errors(*error_statuses, *of_body, *of_query, *always),
            "200": answer,
            **(others or {}),
        },
    }


def errors(*statuses: int) -> dict[str, Json]:
    """Responses by status: errors of this server."""
    return {str(each): {"$ref": f"#/components/responses/Error{each}"} for each in set(statuses)}


def headers(*names: str) -> Json:
    """The headers of a response; some are always sent, some if the project has quotas."""
    sent = ("x-request-id", "openai-processing-ms", *names, *RATE_HEADERS)
    return {name: {"$ref": f"#/components/headers/{name}"} for name in sent}


def response(
    description: str, name: str, *header_names: str, examples: Mapping[str, Json] | None = None
) -> Json:
    """A JSON response: the component `name`."""
    content: Json = {JSON: {"schema": reference(name)}}
    if examples:
        content[JSON]["examples"] = named_examples(examples)
    return raw_response(description, content, *header_names)


def raw_response(description: str, content: Json, *header_names: str) -> Json:
    """A response. `content`: media type -> what OpenAPI says of it."""
    return {"description": description, "headers": headers(*header_names), "content": content}


def request_body(name: str, examples: Mapping[str, Json], *, required: bool = True) -> Json:
    """A JSON body: the component `name`."""
    content = {"schema": reference(name), "examples": named_examples(examples)}
    return {"required": required, "content": {JSON: content}}


def form_body(name: str) -> Json:
    """A form: the component `name`."""
    return {"required": True, "content": {FORM: {"schema": reference(name)}}}


def named_examples(examples: Mapping[str, Json | str]) -> Json:
    """Title -> value, as OpenAPI writes it."""
    return {title: {"value": value} for title, value in examples.items()}


def query_parameter(name: str, schema: Schema, description: str) -> Json:
    """An optional parameter of the query."""
    return {
        "name": name,
        "in": "query",
        "required": False,
        "schema": schema,
        "description": description,
    }


def header_parameter(name: str, schema: Schema, description: str) -> Json:
    """An optional header of the request."""
    return {**query_parameter(name, schema, description), "in": "header"}


def path_parameter(name: str, description: str) -> Json:
    """A part of the path."""
    schema = {"type": "string", "minLength": 1}
    return {**query_parameter(name, schema, description), "in": "path", "required": True}


def about_id(prefix: str) -> str:
    """The description of an id in a path."""
    return f"`{prefix}` and 32 hexadecimal digits. Any other value is not found."


def page_size(of: str) -> Json:
    """The parameter `limit`. `of`: what is on a page."""
    return query_parameter("limit", integer(**PAGE_SIZES) | {"default": PAGE_SIZE}, of)


def page_order(meaning: str) -> Json:
    """The parameter `order`."""
    return query_parameter("order", one_of_texts(ORDERS) | {"default": "desc"}, meaning)


PAGING = [
    page_size("Items on a page."),
    page_order("The order of the list; `desc` shows the last item first."),
    query_parameter("after", STRING, "The id of the last item of the page before."),
]
_IDEMPOTENCY_KEY = header_parameter("Idempotency-Key", text(1, MAX_KEY_LENGTH), IDEMPOTENCY_KEY)
