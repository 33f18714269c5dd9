"""A line of a log as text for people."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from cli.output import GREEN, GREY, RED, YELLOW, clean, paint

_LEVEL_COLOURS = {"debug": GREY, "info": GREEN, "warning": YELLOW, "error": RED, "critical": RED}


def readable(name: str, line: str) -> str:
    """A line of the log `name`: time, level, name, event, then `field=value`. A traceback follows
    on lines of its own. A line that is no JSON object stays as it is."""
    try:
        fields: dict[str, Any] = json.loads(line)
        at = datetime.fromisoformat(fields.pop("timestamp")).astimezone()
        level, event = str(fields.pop("level")), str(fields.pop("event"))
    except (ValueError, KeyError, AttributeError, TypeError):
        return f"{clean(name)}: {clean(line)}"
    fields.pop("process", None)
    exception = str(fields.pop("exception", None) or "")
    head = (
        paint(f"{at:%H:%M:%S}.{at.microsecond // 1000:03}", GREY),
        paint(f"{level:<8}", _LEVEL_COLOURS.get(level)),
        f"{name:<17}",
        _with_fields(event, fields),
    )
    return "\n    ".join([" ".join(head), *map(clean, exception.splitlines())])


def summary(line: str) -> str:
    """The event of a line and its fields, for a sentence. A line that is no JSON object stays as it
    is."""
    try:
        fields: dict[str, Any] = json.loads(line)
        event = str(fields.pop("event"))
    except (ValueError, KeyError, AttributeError, TypeError):
        return clean(line)
    for name in ("timestamp", "level", "process", "exception"):
        fields.pop(name, None)
    return _with_fields(event, fields)


def _with_fields(event: str, fields: Mapping[str, Any]) -> str:
    shown = (
        f"{paint(f'{clean(field)}=', GREY)}{_value(value)}"
        for field, value in fields.items()
        if value is not None
    )
    return " ".join([clean(event), *shown])


def _value(value: Any) -> str:
    if isinstance(value, str) and value and clean(value) == value and not set(value) & set(' "='):
        return value
    return json.dumps(value, separators=(",", ":"))
