"""Times and durations as operators read and write them.

Without pydantic, as models/config/addresses.py.
"""

import re
from datetime import UTC, datetime, timedelta


def format_time(value: datetime) -> str:
    """A time in UTC, with milliseconds."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_date(value: datetime) -> str:
    """A time in UTC, in whole seconds."""
    return value.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def format_seconds(seconds: float) -> str:
    """A duration in the largest unit that fits: `1.5 s`, `12 s`, `3 min`, `5 h`, `2 d`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    for size, unit, limit in ((1, "s", 100), (60, "min", 6000), (3600, "h", 172_800)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def format_precise(seconds: float) -> str:
    """A duration in its two largest units: `340 ms`, `1.24 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    for size, unit, smaller, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {name}"
    return f"{whole // 60} min {whole % 60} s"


def seconds_between(earlier: datetime, later: datetime) -> float:
    """Seconds, at least 0: a creation time comes from another clock, in whole seconds."""
    return max(0.0, (later - earlier).total_seconds())


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
