"""The events of a stream, read from their structs (models/wire/events.py)."""

import msgspec

from features.reference.output_items import LOGPROBS
from features.reference.schemas import COUNT, STRING
from models.wire.api_schema import Schema, const, object_schema, reference
from models.wire.events import Event

_EVENT_FIELDS: dict[str, Schema] = {
    "response": reference("Response"),
    "item": reference("OutputItem"),
    "part": {
        "anyOf": [reference("OutputContent"), reference("ReasoningText"), reference("SummaryText")]
    },
    "annotation": reference("Annotation"),
    "logprobs": LOGPROBS,
}
"""Fields of events with objects -> their schema."""
_PADDING: Schema = {
    "type": "string",
    "description": "Padding without meaning. Only with `include_obfuscation`.",
}
_SCALAR_TYPES: dict[object, Schema] = {int: COUNT, str: STRING}


def event_components() -> dict[str, Schema]:
    """A component for each event struct, and `StreamEvent` for any of them."""
    events: dict[str, Schema] = {}
    tags: dict[str, str] = {}
    for kind in Event.__subclasses__():
        tag = kind.__struct_config__.tag
        assert isinstance(tag, str)
        fields = {
            field.name: _EVENT_FIELDS.get(field.name) or _SCALAR_TYPES[field.type]
            for field in msgspec.structs.fields(kind)
        }
        name = f"{kind.__name__}Event"
        padding = {"obfuscation": _PADDING} if tag.endswith(".delta") else {}
        events[name] = object_schema(
            {"type": const(tag), **fields, "sequence_number": COUNT}, padding
        )
        tags[tag] = reference(name)["$ref"]
    union = {
        "oneOf": [reference(name) for name in events],
        "discriminator": {"propertyName": "type", "mapping": tags},
    }
    return {"StreamEvent": union, **events}
