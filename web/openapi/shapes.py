"""Checks (models/wire/checks.py) read as JSON Schema: the document says what the code does, because it is the code that it reads.

A check is a closure. Which word made it stands in its `__qualname__`, what it was made with in its free variables. Checks that are
functions of their own say nothing about themselves; what they do has to be told to the `Reading`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.wire import checks
from models.wire.checks import Check

Schema = dict[str, Any]
CheckArguments = Mapping[str, Any]
"""What a check was made with."""


@dataclass(frozen=True, slots=True)
class SchemaReader:
    """One way to read checks: as what a client may send, or as what is kept of it and shown later."""

    nulls: bool
    """Whether null stands for an optional field that is absent: true of what is sent, never of what is kept (design §11)."""
    prefix: str
    """Of the names of components."""
    custom_schemas: "Mapping[Check, Callable[[SchemaReader], Schema]]"
    """Checks that are functions of their own, and checks that the document names -> their schema."""

    def schema(self, check: Check) -> Schema:
        """What the check takes. Raises LookupError for a check nobody has described."""
        if check in self.custom_schemas:
            return self.custom_schemas[check](self)
        name: str = getattr(check, "__qualname__", "")
        word = (
            _CHECK_SCHEMAS.get(name.partition(".")[0])
            if check.__module__ == checks.__name__
            else None
        )
        if word is None:
            raise LookupError(
                f"the API document does not know what {check.__module__}.{name} accepts"
            )
        return word(self, inspect.getclosurevars(check).nonlocals)

    def reference(self, name: str) -> Schema:
        """A component of this reading."""
        return reference(f"{self.prefix}{name}")

    def optional(self, schema: Schema) -> Schema:
        """The schema of a field that may be absent."""
        return nullable(schema) if self.nulls else schema


def reference(name: str) -> Schema:
    """Points to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    if not schema or schema.get("type") == "null":
        return schema
    if isinstance(schema.get("type"), str) and "const" not in schema:
        words = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
        return {**schema, "type": [schema["type"], "null"], **words}
    return {"anyOf": [schema, {"type": "null"}]}


def object_schema(
    fields: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None
) -> Schema:
    """An object with these fields; others may come later."""
    return {
        "type": "object",
        "properties": {**fields, **(optional or {})},
        "required": list(fields),
    }


def const(value: str) -> Schema:
    """This word."""
    return {"type": "string", "const": value}


def one_of(kinds: Mapping[str, Schema]) -> Schema:
    """Objects told apart by `type`: its values -> the rest of each. Values that mean the same stand together."""
    alike: list[tuple[list[str], Schema]] = []
    for kind, shape in kinds.items():
        same = next((words for words, known in alike if known == shape), None)
        if same is None:
            alike.append(([kind], shape))
        else:
            same.append(kind)
    return {"oneOf": [with_type(shape, *words) for words, shape in alike]}


def with_type(shape: Schema, *kinds: str) -> Schema:
    """The object, with `type` as its first field: one of these words."""
    word = const(kinds[0]) if len(kinds) == 1 else {"type": "string", "enum": list(kinds)}
    return {
        **shape,
        "properties": {"type": word, **shape.get("properties", {})},
        "required": ["type", *shape.get("required", ())],
    }


def _string(_reader: SchemaReader, arguments: CheckArguments) -> Schema:
    schema: Schema = {"type": "string"}
    if arguments["non_empty"]:
        schema["minLength"] = 1
    if arguments["at_most"] is not None:
        schema["maxLength"] = arguments["at_most"]
    if arguments["shape"] is not None:
        schema["pattern"] = f"^(?:{arguments['shape'].pattern})$"
    return schema


def _integer(_reader: SchemaReader, arguments: CheckArguments) -> Schema:
    return {"type": "integer", "minimum": arguments["low"], "maximum": arguments["high"]}


def _number(_reader: SchemaReader, arguments: CheckArguments) -> Schema:
    return {"type": "number", "minimum": arguments["low"], "maximum": arguments["high"]}


def _choice(_reader: SchemaReader, arguments: CheckArguments) -> Schema:
    return {"type": "string", "enum": list(arguments["known"])}


def _array(reader: SchemaReader, arguments: CheckArguments) -> Schema:
    most = {} if arguments["at_most"] is None else {"maxItems": arguments["at_most"]}
    return {"type": "array", "items": reader.schema(arguments["element"]), **most}


_NOT_NULL: Schema = {"not": {"type": "null"}}
"""What a field that must be there takes, where any JSON is taken: null would mean that it is absent."""


def _record(reader: SchemaReader, arguments: CheckArguments) -> Schema:
    fields = {
        name: (reader.schema(check) or _NOT_NULL)
        if needed
        else reader.optional(reader.schema(check))
        for name, check, needed in arguments["fields"]
    }
    required = [name for name, _, needed in arguments["fields"] if needed]
    return {"type": "object", "properties": fields, **({"required": required} if required else {})}


def _tagged(reader: SchemaReader, arguments: CheckArguments) -> Schema:
    return one_of({kind: reader.schema(check) for kind, check in arguments["kinds"].items()})


def _boolean(_reader: SchemaReader, _arguments: CheckArguments) -> Schema:
    return {"type": "boolean"}


def _any_object(_reader: SchemaReader, _arguments: CheckArguments) -> Schema:
    return {"type": "object", "additionalProperties": True}


def _anything(_reader: SchemaReader, _arguments: CheckArguments) -> Schema:
    return {}


_CHECK_SCHEMAS: dict[str, Callable[[SchemaReader, CheckArguments], Schema]] = {
    "string": _string,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "choice": _choice,
    "array": _array,
    "record": _record,
    "tagged": _tagged,
    "json_object": _any_object,
    "open_object": _any_object,
    "any_json": _anything,
}
"""The words of checks.py -> how each reads."""
