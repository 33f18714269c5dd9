"""What one run works with, made once when it begins."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.tracing.spans import Span
from models.wire.events import Item
from models.wire.purpose import Purpose
from worker.run.attachments import Attachments
from worker.run.attempt import Attempt
from worker.run.attempt_writer import AttemptWriter
from worker.run.call_origins import CallOrigins
from worker.run.compaction import Compactions
from worker.run.output import Output
from worker.run.resources import Resources
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
