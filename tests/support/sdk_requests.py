"""Requests that are made from the types of the installed official SDK: one for each parameter, tool
field, item field and value of a closed list."""

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

JSON = dict[str, Any]

_SCHEMA: JSON = {"type": "object", "properties": {}}
_URL = "https://files.example.com/a"
_SAMPLES: Mapping[str, Any] = {
    **dict.fromkeys(("image_url", "file_url", "server_url", "url"), _URL),
    **dict.fromkeys(("parameters", "schema", "output_schema"), _SCHEMA),
    **dict.fromkeys(("compact_threshold", "max_output_tokens"), 1000),
    "type": "compaction",
}
"""Fields whose value must be one that means something."""
_NEEDED: Mapping[str, tuple[tuple[str, Any], ...]] = {
    "input_image": (("image_url", _URL), ("file_id", "")),
    "input_file": (("file_data", "eA=="), ("file_url", ""), ("file_id", "")),
    "computer_screenshot": (("image_url", _URL), ("file_id", "")),
    "mcp": (("server_url", _URL), ("connector_id", ""), ("tunnel_id", "")),
    "function_call_output": (("call_id", "x"),),
    "tool_search": (("execution", "client"),),
}
"""type of an object -> fields of which it needs one, although the SDK's type says that all are
optional; the first of them with its value."""


def variants(annotation: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Values of this type, each with its place: at first one with nothing optional, then each
    optional field, each member of a union and each value of a closed list once.

    `name`: of the field that has the type. A place looks like `[function].strict`: the type of an
    object, then its field; `='auto'` after it is a value of a closed list.
    """
    origin = get_origin(annotation)
    if origin in (Required, NotRequired):
        yield from variants(get_args(annotation)[0], name)
    elif origin is Literal:
        yield from ((f"={value!r}", value) for value in get_args(annotation))
    elif origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from variants(member, name)
    elif annotation is type(None):
        return
    elif hasattr(annotation, "__total__"):  # a TypedDict, of typing or of typing_extensions
        yield from _objects(annotation)
    elif name in _SAMPLES:
        yield "", _SAMPLES[name]
    elif origin is dict and name == "tools":
        yield "", {"type": "function", "name": "x"}
    elif origin is dict:
        yield from ((place, {"key": value}) for place, value in variants(get_args(annotation)[1]))
    elif origin is not None:
        yield from ((place, [value]) for place, value in variants(get_args(annotation)[0], name))
    else:
        yield "", _SIMPLE[annotation]


_SIMPLE: Mapping[Any, Any] = {str: "x", bool: True, int: 1, float: 0.5, object: {"key": "x"}}


def _objects(annotation: Any) -> Iterator[tuple[str, JSON]]:
    """Objects with the required fields, then with each of their fields in each of its variants."""
    fields = get_type_hints(annotation, include_extras=True)
    base = {
        name: next(variants(kind, name))[1]
        for name, kind in fields.items()
        if get_origin(kind) is Required or annotation.__total__
    }
    tag = base.get("type") or next((v for _, v in variants(fields.get("type", str))), "")
    place = f"[{tag}]" if "type" in fields else ""
    needed = [each for each in _NEEDED.get(str(tag), ()) if each[0] in fields]
    yield place, _completed(base, needed)
    for name, kind in fields.items():
        for inner, value in variants(kind, name):
            yield f"{place}.{name}{inner}", _completed({**base, name: value}, needed)


def _completed(value: JSON, needed: list[tuple[str, Any]]) -> JSON:
    if not needed or any(name in value for name, _ in needed[1:]):
        return value
    return dict(needed[:1]) | value


def parameters(annotation: Any) -> Iterator[tuple[str, JSON]]:
    """The parameters of a request whose body has this type, each alone, each with its place."""
    for name, kind in get_type_hints(annotation, include_extras=True).items():
        if name != "model":
            for place, value in variants(kind, name):
                yield f"{name}{place}", {name: value}
