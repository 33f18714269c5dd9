"""The `computer` tool for a chat upstream: the schema of its function, and the actions in the
arguments that a model writes.

The fields are those of OpenAI's SDK (`computer_action.py`). Models that were trained for other
computer tools write other names, coordinates as a list, and numbers as strings. What is clear is
mended; an action that stays unclear makes the whole call invalid.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from models.errors import InvalidRequest
from models.wire.json_input import decode_body

Json = dict[str, Any]

_TYPES = (
    "click",
    "double_click",
    "drag",
    "keypress",
    "move",
    "screenshot",
    "scroll",
    "type",
    "wait",
)
_BUTTONS = ("left", "right", "wheel", "back", "forward")
_POINT: Json = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}

ACTION_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": list(_TYPES)},
        "x": {"type": "integer", "description": "For click, double_click, move and scroll."},
        "y": {"type": "integer", "description": "As x."},
        "button": {"type": "string", "enum": list(_BUTTONS), "description": "For click."},
        "scroll_x": {"type": "integer", "description": "For scroll: pixels to the right."},
        "scroll_y": {"type": "integer", "description": "For scroll: pixels downwards."},
        "path": {
            "type": "array",
            "items": _POINT,
            "description": "For drag: the points from the start to the end.",
        },
        "keys": {
            "type": "array",
            "items": {"type": "string"},
            "description": (
                'For keypress: the keys to press together, such as ["CTRL", "C"]. '
                "For actions of the mouse: the keys to hold."
            ),
        },
        "text": {"type": "string", "description": "For type: the text to type."},
    },
    "required": ["type"],
    "additionalProperties": False,
}
"""One action. Flat, because many servers cannot constrain a model to one of several objects."""

BATCH_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "actions": {
            "type": "array",
            "items": ACTION_SCHEMA,
            "description": "Carried out one after the other.",
        }
    },
    "required": ["actions"],
    "additionalProperties": False,
}

DESCRIPTION = (
    "Controls the user's computer with mouse and keyboard. The output is a screenshot, made after "
    "the last action; to only see the screen, use the action screenshot. Coordinates are pixels of "
    "the newest screenshot, from its upper left corner."
)


def display_text(tool: Mapping[str, Any]) -> str:
    """What the tool says about the display; empty if it says nothing."""
    width, height, environment = (
        tool.get(name) for name in ("display_width", "display_height", "environment")
    )
    size = f" The display has {width} x {height} pixels." if width and height else ""
    return f"{size} The environment is: {environment}." if environment else size


def computer_fields(arguments: Json) -> Json | None:
    """The fields of a `computer_call` with all of its actions; None if one is not valid."""
    written = _decoded(arguments.get("actions"))
    if written is None:
        nested = _decoded(arguments.get("action"))
        # Some models name the action's type `action`.
        written = nested if isinstance(nested, dict | list) else arguments
    actions = [_action(each) for each in (written if isinstance(written, list) else [written])]
    if not actions or None in actions:
        return None
    return {"actions": actions, "pending_safety_checks": []}


def computer_arguments(item: Json) -> Json:
    """The arguments of a call in the history: its actions, or its only action."""
    if item.get("actions") is not None:
        return {"actions": item["actions"]}
    action = item.get("action")
    return action if isinstance(action, dict) else {}


def _decoded(value: Any) -> Any:
    """A list or an object that was written as JSON in a string; any other value as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        return decode_body(value.encode())
    except InvalidRequest:
        return value


_ALIASES: Mapping[str, tuple[str, str | None]] = {
    "left_click": ("click", "left"),
    "right_click": ("click", "right"),
    "middle_click": ("click", "wheel"),
    "mouse_move": ("move", None),
    "left_click_drag": ("drag", None),
    "key": ("keypress", None),
    "hotkey": ("keypress", None),
}
"""The names of Anthropic's and Qwen's computer tools -> type and button."""


def _action(written: Any) -> Json | None:
    if isinstance(written, str):
        written = {"type": written}
    if not isinstance(written, dict):
        return None
    name = written.get("type") or written.get("action")
    if not isinstance(name, str):
        return None
    name = name.strip().lower().replace("-", "_")
    kind, button = _ALIASES.get(name, (name, None))
    read = _READERS.get(kind)
    fields = read(written if button is None else {**written, "button": button}) if read else None
    return None if fields is None else {"type": kind, **fields}


def _click(written: Json) -> Json | None:
    button = written.get("button") or "left"
    button = "wheel" if button == "middle" else button
    point = _mouse_fields(written)
    return {"button": button, **point} if point and button in _BUTTONS else None


def _double_click(written: Json) -> Json | None:
    point = _mouse_fields(written)
    return {"keys": None, **point} if point else None  # here the SDK requires `keys`


def _drag(written: Json) -> Json | None:
    path = _decoded(written.get("path"))
    if path is None:
        path = [written.get("start_coordinate"), written.get("coordinate")]
    points = [_point(each) for each in path] if isinstance(path, list) else []
    held = _held_keys(written)
    if held is None or len(points) < 2 or not all(points):
        return None
    return {"path": points, **held}


def _keypress(written: Json) -> Json | None:
    keys = _keys(written.get("keys") or written.get("key") or written.get("text"))
    return {"keys": keys} if keys else None


def _scroll(written: Json) -> Json | None:
    point = _mouse_fields(written)
    given = [name for name in ("scroll_x", "scroll_y") if written.get(name) is not None]
    distances = {name: _integer(written.get(name, 0)) for name in ("scroll_x", "scroll_y")}
    if not point or not given or any(distances[name] is None for name in given):
        return None
    return {**{name: distance or 0 for name, distance in distances.items()}, **point}


def _type(written: Json) -> Json | None:
    text = written.get("text")
    if type(text) in (int, float):
        text = str(text)
    return {"text": text} if isinstance(text, str) else None


def _no_fields(_written: Json) -> Json:
    return {}


def _mouse_fields(written: Json) -> Json | None:
    """The point of an action of the mouse, and the keys to hold."""
    point, held = _point(written), _held_keys(written)
    return None if point is None or held is None else {**point, **held}


def _point(value: Any) -> Json | None:
    """`{"x": 1, "y": 2}`: from that, from a pair, from a text with two numbers, or from one of them
    in `coordinate` or `x`."""
    if isinstance(value, dict):
        if value.get("y") is None:
            return _point(value.get("coordinate", value.get("x")))
        value = [value.get("x"), value["y"]]
    elif isinstance(value, str):
        value = _NUMBER.findall(value)
    if not isinstance(value, list) or len(value) != 2:
        return None
    x, y = map(_integer, value)
    return None if x is None or y is None else {"x": x, "y": y}


_NUMBER = re.compile(r"(?<!\d)-?\d+(?:\.\d+)?")


def _integer(value: Any) -> int | None:
    """A number of pixels, rounded. A fraction below 1 is none: some models count in shares of the
    display."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if type(value) not in (int, float) or abs(value) >= 2**31 or 0 < abs(value) < 1:
        return None
    rounded: int = round(value)
    return rounded


def _held_keys(written: Json) -> Json | None:
    """`keys`, if there are any; None if they are not valid."""
    if not written.get("keys"):
        return {}
    keys = _keys(written["keys"])
    return {"keys": keys} if keys else None


def _keys(value: Any) -> list[str] | None:
    """The keys in a list or in a text such as `ctrl+c`."""
    value = _decoded(value)
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(key, str) and key for key in listed):
        return None
    return [part for key in listed for part in _PLUS.split(key)]


_PLUS = re.compile(r"(?<=.)\+(?=.)")
"""A plus between two keys, and not the key itself."""

_READERS: Mapping[str, Callable[[Json], Json | None]] = {
    "click": _click,
    "double_click": _double_click,
    "drag": _drag,
    "keypress": _keypress,
    "move": _mouse_fields,
    "screenshot": _no_fields,
    "scroll": _scroll,
    "type": _type,
    "wait": _no_fields,
}
"""type of an action -> the reader of its fields."""
