"""Durations as an operator writes them. Without pydantic, as models/config/addresses.py."""

import re
from datetime import timedelta

_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
"""The largest first."""
_PART = r"(\d+(?:\.\d+)?)\s*(ms|[dhms])"


def parse_duration(text: str) -> timedelta | None:
    """The duration of a number of seconds, or of numbers with units; None if it is neither. Raises
    OverflowError."""
    if re.fullmatch(rf"({_PART}\s*)+", text.strip()):
        parts = re.findall(_PART, text)
        return sum((float(number) * _UNITS[unit] for number, unit in parts), timedelta(0))
    try:
        return timedelta(seconds=float(text))
    except ValueError:
        return None


def format_duration(duration: timedelta) -> str:
    """A duration as an operator writes it: `30d`, `90s`, `500ms`, in the largest exact unit."""
    for name, unit in _UNITS.items():
        if duration >= unit and duration % unit == timedelta(0):
            return f"{duration // unit}{name}"
    return f"{duration.total_seconds():.15g}s"
