"""The JSON lines of the processes as text for people, on the terminal in which `up` runs."""

import threading
from collections.abc import Iterable
from pathlib import Path

from cli.embedded.detached import Log
from cli.embedded.log_text import readable
from cli.output import print_status

_OTHER_FORMATS = frozenset(("postgres", "valkey"))
"""Logs that have no JSON lines, and much that only matters when these servers fail."""
_INTERVAL = 0.2
"""Seconds between two looks at the logs."""


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
