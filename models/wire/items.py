"""Input items: from what clients send to the one form in which each is stored, listed and passed to
the worker. The fields of each type are in models/wire/checks/items.py."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire import api_schema
from models.wire.checks import faults
from models.wire.checks.basic import calls
from models.wire.checks.items import ITEM_CHECKS, REFUSED_ITEMS
from models.wire.events import Item
from models.wire.item_types import ID_PREFIXES, OUTPUTS

NewId = Callable[[str], str]
"""Makes an id from its prefix: `msg` -> `msg_…`."""

MAX_INPUT_STRING = 10_485_760
"""Characters of a string `input`, as OpenAI documents it."""

MAX_INPUT_ITEMS = 100_000
"""Items of one `input`. Each costs time in the event loops of both processes, while all other
streams wait."""

_REFERENCE = "item_reference"
_TRIGGER = "compaction_trigger"
_USABLE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_CALLS = calls(ITEM_CHECKS)


def input_items(value: Any, new_id: NewId) -> list[Item]:
    """The items of an `input`, normalised; a string is one user message.

    Every item except a reference has `id`, `type` and `status`. The client's id is kept if it has
    only letters, digits, `_` and `-`. `value` is not changed. Raises InvalidRequest, which names
    the place: `input[3].content[0].text`.
    """
    if type(value) is str:
        if len(value) > MAX_INPUT_STRING:
            raise faults.too_long("input", "string", MAX_INPUT_STRING, len(value))
        return [_parse_item({"role": "user", "content": value}, "input", new_id)]
    if type(value) is not list:
        raise faults.wrong_type("input", "a string or an array of input items", value)
    if len(value) > MAX_INPUT_ITEMS:
        raise faults.too_long("input", "array", MAX_INPUT_ITEMS, len(value))
    return _parse_items(value, "input", new_id)


def conversation_items(value: Any, new_id: NewId, limit: int) -> list[Item]:
    """The `items` that a client adds to a conversation, at most `limit`, normalised like an input.

    Raises InvalidRequest, which names the place: `items[3]`.
    """
    if type(value) is not list:
        raise faults.wrong_type("items", "an array", value)
    if len(value) > limit:
        raise faults.too_long("items", "array", limit, len(value))
    items = _parse_items(value, "items", new_id)
    if items and items[-1]["type"] == _TRIGGER:
        place = f"items[{len(items) - 1}]"
        message = (
            f"Invalid '{place}': a '{_TRIGGER}' cannot be stored in a conversation. "
            "Send it in the 'input' of a response."
        )
        raise InvalidRequest(message, param=place, code="invalid_value")
    return items


def input_schema(scope: api_schema.SchemaScope) -> api_schema.Schema:
    """JSON Schema of an `input`. Refers to the component `Item` of the scope."""
    items = {"type": "array", "items": api_schema.reference(f"{scope.prefix}Item")}
    return {"anyOf": [{"type": "string", "maxLength": MAX_INPUT_STRING}, items]}


def item_schemas(scope: api_schema.SchemaScope) -> dict[str, api_schema.Schema]:
    """Components: one for each type of item, and `Item` for all of them."""
    kinds = [kind for kind in ITEM_CHECKS if scope.is_input or kind != _REFERENCE]
    schemas = {f"{scope.prefix}{_title(kind)}": _item_schema(kind, scope) for kind in kinds}
    union = {"anyOf": [api_schema.reference(name) for name in schemas]}
    return {f"{scope.prefix}Item": union, **schemas}


def referenced_ids(items: Iterable[Item]) -> list[str]:
    """The ids in item references, in order."""
    return [item["id"] for item in items if item["type"] == _REFERENCE]


def substitute_references(
    items: list[Item], by_id: Mapping[str, Item], where: str = "input"
) -> list[Item]:
    """The items, with the referenced item in place of each reference.

    Raises InvalidRequest for the first reference whose item is not in `by_id`.
    """
    for index, item in enumerate(items):
        if item["type"] == _REFERENCE and item["id"] not in by_id:
            message = (
                f"Item with id '{faults.shorten(item['id'])}' not found. "
                "Items of responses created with 'store': false cannot be referred to."
            )
            raise InvalidRequest(message, param=f"{where}[{index}]", code="item_not_found")
    return [by_id[item["id"]] if item["type"] == _REFERENCE else item for item in items]


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The position of a file in a list of items that have its URL or its id."""

    item: int
    field: str
    """`content` of a message, `output` of a call's output."""
    part: int | None
    """None: the field is no list of parts, but one screenshot."""
    kind: str
    """the type of the part: `input_file`, `input_image` or `computer_screenshot`"""
    name: str
    """`file_url` or `file_id`"""
    value: str

    def path(self, item: int, where: str = "input") -> str:
        """The place as an error names it, if the item is `where[item]`."""
        part = "" if self.part is None else f"[{self.part}]"
        return f"{where}[{item}].{self.field}{part}.{self.name}"

    @property
    def is_image(self) -> bool:
        """Whether it is the place of an image."""
        return self.kind != "input_file"

    def part_of(self, item: Item) -> dict[str, Any]:
        """The part that has the URL or the id."""
        part: dict[str, Any] = (
            item[self.field] if self.part is None else item[self.field][self.part]
        )
        return part


def file_places(items: list[Item]) -> Iterator[FilePlace]:
    """Every `file_url` and every `file_id` in these items, in order."""
    for index, item in enumerate(items):
        field = "output" if item["type"] in OUTPUTS else "content"
        parts = item.get(field)
        if type(parts) is list:
            yield from (
                FilePlace(index, field, position, part["type"], name, part[name])
                for position, part in enumerate(parts)
                for name in _FILE_NAMES
                if name in part
            )
        elif item["type"] == "computer_call_output" and type(parts) is dict and "file_id" in parts:
            yield FilePlace(index, field, None, parts["type"], "file_id", parts["file_id"])


_FILE_NAMES = ("file_url", "file_id")


def duplicate_item(item_id: str, where: str) -> InvalidRequest:
    """For an item that occurs twice: in the list at `where`, or there and in the conversation.

    OpenAI's wording (continuedev/continue#10723).
    """
    message = (
        f"Duplicate item found with id {faults.shorten(item_id)}. "
        "Remove duplicate items from your input and try again."
    )
    return InvalidRequest(message, param=where, code="invalid_value")


def _parse_items(values: list[Any], where: str, new_id: NewId) -> list[Item]:
    items = [_parse_item(value, f"{where}[{index}]", new_id) for index, value in enumerate(values)]
    _require_last_trigger(items, where)
    _require_distinct_ids(items, where)
    return items


def _parse_item(value: Any, where: str, new_id: NewId) -> Item:
    if type(value) is not dict:
        raise faults.wrong_type(where, "an input item", value)
    kind = _kind(value, where)
    fields = _CALLS[kind](value, where)
    if kind == "image_generation_call" and _is_reference(value):
        return {"type": _REFERENCE, "id": value["id"]}
    if kind == _REFERENCE:
        return {"type": kind, **fields}
    item_id = value.get("id")
    if item_id is not None:
        item_id = _usable_id(item_id, where)
    return {
        "id": item_id or new_id(ID_PREFIXES[kind]),
        "type": kind,
        "status": fields.pop("status", "completed"),
        **fields,
    }


_OWN_IMAGE = re.compile(r"ig_[0-9a-f]{32}")
"""The ids of images that were made here (models/ids.py). Upstreams make longer ones."""


def _is_reference(image: dict[str, Any]) -> bool:
    """Whether an image without its content names one that was made here."""
    return (
        not image.get("result")
        and image.get("status") in (None, "completed")
        and type(item_id := image.get("id")) is str
        and _OWN_IMAGE.fullmatch(item_id) is not None
    )


def _item_schema(kind: str, scope: api_schema.SchemaScope) -> api_schema.Schema:
    schema = ITEM_CHECKS[kind].schema(scope)
    fields = schema["properties"]
    if not scope.is_input:
        always = {
            "id": {"type": "string"},
            "type": api_schema.const(kind),
            "status": {"type": "string"},
        }
        return {
            **schema,
            "properties": {**always, **fields},
            "required": list(dict.fromkeys((*always, *schema.get("required", ())))),
        }
    if kind == _REFERENCE:
        return {
            **schema,
            "properties": {"type": api_schema.nullable(api_schema.const(kind)), **fields},
            "anyOf": _REFERENCE_FORMS,
        }
    schema["properties"] = {"id": api_schema.nullable({"type": "string"}), **fields}
    if kind == "message":
        optional_type = {"type": ["string", "null"], "enum": [kind, None]}
        return {**schema, "properties": {"type": optional_type, **schema["properties"]}}
    return api_schema.with_type(schema, kind)


_REFERENCE_FORMS: list[api_schema.Schema] = [
    {"properties": {"type": api_schema.const(_REFERENCE)}, "required": ["type"]},
    {
        "properties": {"type": api_schema.NULL},
        "not": {"anyOf": [{"required": ["role"]}, {"required": ["content"]}]},
    },
]
"""A reference has a `type`, or neither `role` nor `content`: those make it a message (`_kind`)."""


def _title(kind: str) -> str:
    """`function_call` -> `FunctionCall`."""
    return "".join(word.capitalize() for word in kind.split("_"))


def _kind(value: dict[str, Any], where: str) -> str:
    kind = value.get("type")
    if kind is None:
        if "role" in value or "content" in value:
            return "message"
        if "id" in value:
            return _REFERENCE  # its type may be null or absent, as in OpenAI's API
        raise faults.missing(f"{where}.type")
    if type(kind) is not str:
        raise faults.wrong_type(f"{where}.type", "a string", kind)
    if kind in REFUSED_ITEMS:
        raise faults.refused_value(f"{where}.type", kind, REFUSED_ITEMS[kind])
    if kind not in ITEM_CHECKS:
        raise faults.unsupported_value(f"{where}.type", kind, ITEM_CHECKS)
    return kind


def _usable_id(item_id: Any, where: str) -> str | None:
    """The client's id; None if it has other characters. Raises InvalidRequest."""
    if type(item_id) is not str:
        raise faults.wrong_type(f"{where}.id", "a string", item_id)
    return item_id if _USABLE_ID.fullmatch(item_id) else None


def _require_last_trigger(items: list[Item], where: str) -> None:
    """A compaction covers everything before its trigger, so no item may follow the trigger."""
    last = len(items) - 1
    for index, item in enumerate(items):
        if item["type"] == _TRIGGER and index < last:
            place = f"{where}[{index}]"
            message = f"Invalid '{place}': a '{_TRIGGER}' must be the last input item."
            raise InvalidRequest(message, param=place, code="invalid_value")


def _require_distinct_ids(items: list[Item], where: str) -> None:
    """References count too: pages of items are addressed by id, so an id must be unique."""
    seen: set[str] = set()
    for item in items:
        if item["id"] in seen:
            raise duplicate_item(item["id"], where)
        seen.add(item["id"])
