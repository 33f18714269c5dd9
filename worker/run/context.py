"""What one run works with, made once when it begins; and how much memory that takes, approximately:
to choose which runs a worker gives up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.tracing.spans import Span
from models.wire.events import Item
from models.wire.purpose import Purpose
from worker.run.attachments import Attachments
from worker.run.attempt import Attempt
from worker.run.attempt_writer import AttemptWriter
from worker.run.compaction import Compactions
from worker.run.moderation import Moderation
from worker.run.output import Output
from worker.run.resources import Resources
from worker.run.sealing import CallOrigins
from worker.tools.toolbox import Toolbox
from worker.upstream.upstreams import Candidate


@dataclass(frozen=True, slots=True)
class RunContext:
    """One attempt with everything it needs: state, writer, history, tools, and the process."""

    attempt: Attempt
    writer: AttemptWriter
    resources: Resources
    purpose: Purpose
    history: list[Item]
    """The items before this response's output, files downloaded and compactions expanded. Stored
    files are there with their ids."""
    attachments: Attachments
    """The files in it."""
    call_origins: CallOrigins
    """Of the calls in it."""
    toolbox: Toolbox
    compactions: Compactions
    moderation: Moderation | None
    """None: the request wants none, or its upstreams moderate."""
    is_draining: Callable[[], bool]
    """Whether the process stops: the run begins no further step."""
    span: Span
    """Of the attempt."""

    async def candidates(self) -> list[Candidate]:
        """The upstreams of the response's model, in order, as the project's policy is now; at least
        one. Raises UpstreamFailed."""
        project = self.attempt.claim.row.project_id
        policy = await self.resources.policies.policy(project)
        model = self.attempt.facts.model
        return self.resources.upstreams.candidates(model, project, policy)

    @property
    def output(self) -> Output:
        """The stored output of the response."""
        return self.attempt.output

    @property
    def parameters(self) -> dict[str, Any]:
        """The request parameters."""
        return self.attempt.facts.parameters

    def full_history(self) -> list[Item]:
        """The history for the next turn with its files: what came before, and the output."""
        return self.attachments.with_stored(self.history_to_store())

    def history_to_store(self) -> list[Item]:
        """The same with the ids of stored files instead of their data."""
        return self.compactions.expand([*self.history, *self.output.as_history])


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
