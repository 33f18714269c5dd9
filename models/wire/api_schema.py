"""JSON Schema of the API's own types, for the document at /openapi.json.

Each check (models/wire/checks) describes what it accepts with these functions. JSON Schema that a
client sends is another matter: models/wire/checks/json_schema.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Schema = dict[str, Any]

NULL: Schema = {"type": "null"}


class Described(Protocol):
    """Something that has a schema."""

    def schema(self, scope: "SchemaScope", /) -> Schema:
        """The schema of what it accepts, or of what it stores: `scope` says which."""


@dataclass(frozen=True, slots=True)
class SchemaScope:
    """What schemas are written for: what clients send, or what is stored of it and shown later."""

    is_input: bool
    """True: null means that an optional field is absent. False: defaults are filled in, and null
    and unknown fields are left out."""
    prefix: str
    """Of the names of components."""
    components: dict[str, Schema] = field(default_factory=dict)
    """The components that the schemas of this scope refer to. Grows with each new reference."""

    def component(self, name: str, described: Described) -> Schema:
        """A reference to the component that holds this schema; adds the component."""
        full_name = f"{self.prefix}{name}"
        if full_name not in self.components:
            self.components[full_name] = described.schema(self)
        return reference(full_name)

    def optional(self, schema: Schema) -> Schema:
        """The schema of a field that may be absent."""
        return nullable(schema) if self.is_input else schema


def input_scope() -> SchemaScope:
    """For what a client may send."""
    return SchemaScope(is_input=True, prefix="Input")


def stored_scope() -> SchemaScope:
    """For what is stored, listed and echoed."""
    return SchemaScope(is_input=False, prefix="Listed")


def reference(name: str) -> Schema:
    """Points to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    if not schema or schema.get("type") == "null":
        return schema
    if isinstance(schema.get("type"), str) and "const" not in schema:
        values = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
        return {**schema, "type": [schema["type"], "null"], **values}
    return {"anyOf": [schema, NULL]}


def object_schema(
    fields: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None
) -> Schema:
    """An object with these fields. Other fields are allowed."""
    return {
        "type": "object",
        "properties": {**fields, **(optional or {})},
        "required": list(fields),
    }


def const(value: str) -> Schema:
    """This string only."""
    return {"type": "string", "const": value}


def whole(pattern: str) -> str:
    """A pattern that must match a whole string, as JSON Schema writes it."""
    return f"^(?:{pattern})$"


def one_of(kinds: Mapping[str, Schema]) -> Schema:
    """Objects that differ by `type`: each of its values -> the other fields.

    Values with the same fields share one schema.
    """
    groups: list[tuple[list[str], Schema]] = []
    for kind, schema in kinds.items():
        same = next((values for values, known in groups if known == schema), None)
        if same is None:
            groups.append(([kind], schema))
        else:
            same.append(kind)
    return {"oneOf": [with_type(schema, *values) for values, schema in groups]}


def with_type(schema: Schema, *kinds: str) -> Schema:
    """The object with `type` as its first field, which has one of these values."""
    value = const(kinds[0]) if len(kinds) == 1 else {"type": "string", "enum": list(kinds)}
    return {
        **schema,
        "properties": {"type": value, **schema.get("properties", {})},
        "required": ["type", *schema.get("required", ())],
    }
