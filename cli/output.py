"""What commands print: lines on standard error, JSON with stable keys, tables."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any


def print_status(text: str) -> None:
    """Prints a line for the operator on standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def as_json(result: Any) -> str:
    """A result with its dataclasses as objects, times in ISO 8601 (UTC), durations in seconds."""
    return json.dumps(result, default=_json_default, indent=2, ensure_ascii=False)


def _json_default(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return format_time(value) if isinstance(value, datetime) else str(value)


def format_time(value: datetime) -> str:
    """A time in UTC, with milliseconds."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines with aligned columns; the last column is not padded."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)), row[-1]]
        ).rstrip()
        for row in (head, *rows)
    )
