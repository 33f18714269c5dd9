"""Times and durations as operators read them."""

from datetime import UTC, datetime


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


def seconds_between(earlier: datetime, later: datetime) -> float:
    """Seconds, at least 0: a creation time comes from another clock, in whole seconds."""
    return max(0.0, (later - earlier).total_seconds())
