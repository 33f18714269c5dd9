"""How much memory a run takes, approximately: to choose which ones a worker gives up."""

from typing import Any

from worker.run.attempt import Attempt
from worker.run.context import RunContext

_VALUE_BYTES = 64
"""Of a small object of Python, and of its place in a list or dict."""
_MOST_VALUES = 50_000
"""Values that are looked at: some milliseconds. With more, the others count as much as these."""
_TURN_FACTOR = 8
"""A turn's text is in its items, in frames, and in the statements that store it."""


class Footprint:
    """The memory of one run. Its history is measured only once, because that takes time."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._of_history: int | None = None

    def measure(self, context: RunContext) -> int:
        """Bytes of the history and the parameters, which do not change any more."""
        self._of_history = json_bytes([self._attempt.claim.row.parameters, context.history])
        return self._of_history

    def estimate(self, context: RunContext | None) -> int:
        """Bytes. `context`: None while the history is being read."""
        if self._of_history is None and context is not None:
            self.measure(context)
        row = self._attempt.claim.row
        of_history = self._of_history or json_bytes([row.parameters, row.input])
        turn = self._attempt.current_turn
        of_turn = 0 if turn is None else _TURN_FACTOR * turn.weight
        return of_history + json_bytes(self._attempt.output.items) + of_turn


def json_bytes(value: Any) -> int:
    """Bytes of memory of a JSON value, approximately."""
    size, count = 0, 0
    pending = [value]
    while pending:
        if count == _MOST_VALUES:
            return size + size // count * len(pending)
        inner = pending.pop()
        count += 1
        size += _VALUE_BYTES
        if type(inner) is str:
            size += len(inner)
        elif type(inner) is dict:
            pending += inner.values()
            size += sum(map(len, inner))
        elif type(inner) is list:
            pending += inner
    return size
