"""The JSON lines of the processes as text for people, on the terminal in which `up` runs."""

import json
import threading
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from cli.embedded.detached import Log
from cli.output import GREEN, GREY, RED, YELLOW, clean, paint, print_status

_LEVEL_COLOURS = {
    "debug": GREY,
    "info": GREEN,
    "warning": YELLOW,
    "error": RED,
    "critical": RED,
}
_OTHER_FORMATS = frozenset(("postgres", "valkey"))
"""Logs that have no JSON lines, and much that only matters when these servers fail."""
_INTERVAL = 0.2
"""Seconds between two looks at the logs."""


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
        clean(event),
        *(
            f"{paint(f'{clean(field)}=', GREY)}{_value(value)}"
            for field, value in fields.items()
            if value is not None
        ),
    )
    return "\n    ".join([" ".join(head), *map(clean, exception.splitlines())])


def _value(value: Any) -> str:
    if isinstance(value, str) and value and clean(value) == value and not set(value) & set(' "='):
        return value
    return json.dumps(value, separators=(",", ":"))


class TerminalLogs:
    """A thread that prints what is added to the logs of a stack, from now on."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._logs = [Log(path, 0) for path in paths if path.stem not in _OTHER_FORMATS]
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="terminal-logs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Prints the last lines. A terminal that accepts nothing is waited for only one second."""
        self._has_ended.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._has_ended.wait(_INTERVAL):
            self._print_new_lines()
        self._print_new_lines()

    def _print_new_lines(self) -> None:
        for log in self._logs:
            for line in log.read():
                print_status(readable(log.name, line))
