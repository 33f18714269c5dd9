"""The logs of a deployment's processes: their lines, their ends, and the tracebacks in them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from tests.support.api import JSON, until


class LoggedProcess(Protocol):
    """A process with a log file."""

    name: str
    log: Path

    def tail(self, size: int, after: int) -> str:
        """The end of its log: at most `size` bytes, none before the offset `after`."""


def lines(process: LoggedProcess) -> list[JSON]:
    """The log of a process, each line of which must be JSON."""
    complete, _, _ = process.log.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in complete.splitlines()]


async def line_of(process: LoggedProcess, event: str, **fields: Any) -> JSON:
    """The one line with this event and these fields."""

    def matching() -> list[JSON]:
        return [
            line
            for line in lines(process)
            if line["event"] == event and fields.items() <= line.items()
        ]

    found = await until(matching)
    assert len(found) == 1, found
    return found[0]


def tracebacks(processes: Iterable[LoggedProcess], allowed: tuple[str, ...]) -> list[str]:
    """The tracebacks that contain none of the `allowed` texts, with their processes' names."""
    logs_by_name = [
        (process.name, text)
        for process in processes
        for text in _tracebacks(process.log.read_text(errors="replace"))
    ]
    return [
        f"── {name} ──\n{text[:300]}\n…\n{text[-2000:]}"
        for name, text in logs_by_name
        if not any(part in text for part in allowed)
    ]


def tails(
    processes: Iterable[LoggedProcess], size: int, after: dict[str, int] | None = None
) -> str:
    """The ends of the logs, each at most `size` bytes. `after`: process name -> first offset."""
    return "\n".join(
        f"── {process.name} ──\n{text}"
        for process in processes
        if (text := process.tail(size, (after or {}).get(process.name, 0)))
    )


def _tracebacks(log: str) -> list[str]:
    """The tracebacks in a log: inside its JSON lines, and those of the interpreter."""
    head = "Traceback (most recent call last)"
    lines = log.splitlines(keepends=True)
    inside = [line.replace("\\n", "\n") for line in lines if line.startswith("{") and head in line]
    return inside + "".join(line for line in lines if not line.startswith("{")).split(head)[1:]
