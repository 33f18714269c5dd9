"""Running code in a worker: the tools `code_interpreter` and `shell`, and the end of sessions whose
container was deleted, has expired, or lost them to another one, or which an operator has stopped.
Only workers reach sandboxes, so what ends a session is a row."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from features.code.queries import (
    SESSION_ENDED,
    SESSION_IS_OVER,
    TAKE_OVER_SESSIONS,
    OverSession,
)
from features.code.store import Containers
from features.code.tool.cells import Cells
from features.code.tool.client import (
    Place,
    Sandboxes,
    SandboxFull,
    SandboxUnavailable,
    SessionLost,
)
from features.code.tool.providers import CodeInterpreter, ContainerShell
from models.db.database import Pool, execute
from models.due_work import DuePoll, DueWork, KindOfWork
from models.ended_line import EndedLine
from models.fence import FENCE, RowLease
from models.ids import CONTAINER, admin_id
from worker.run.resources import Resources, WorkerFeature
from worker.tools.provider import ToolContext, ToolProvider

_AT_ONCE = 16
_LEASE = timedelta(seconds=30)
"""A sandbox that does not answer gets the next request after it."""
_POLL = 1.0


class SessionsEnd:
    """Ends the sessions of all projects, in one worker."""

    def __init__(self, pool: Pool, sandboxes: Sandboxes) -> None:
        self._pool = pool
        self._sandboxes = sandboxes

    async def run(self, poll: DuePoll) -> None:
        """Ends them until it is cancelled."""
        kind = KindOfWork(
            "sessions_end", TAKE_OVER_SESSIONS, _LEASE, _POLL, _room, self._end, _facts
        )
        work = DueWork(self._pool, kind)
        work.find_by(poll, SESSION_IS_OVER)
        await work.run()

    async def _end(self, over: OverSession, lease: RowLease) -> None:
        FENCE.set(lease.require)
        try:
            await self._sandboxes.close_session(Place(over.sandbox, over.session))
        except SessionLost:
            pass
        except (SandboxUnavailable, SandboxFull):
            if not over.is_old:
                return
        values = {"id": over.id, "session": over.session}
        await execute(self._pool, SESSION_ENDED, values)


def _room(running: Sequence[OverSession]) -> dict[str, object] | None:
    free = _AT_ONCE - len(running)
    return {"free": free} if free > 0 else None


def _facts(over: OverSession) -> dict[str, object]:
    return {"container": admin_id(CONTAINER, over.id), "sandbox": over.sandbox}


_CELLS = ("code_interpreter_call", "shell_call_output")
"""Types of the items whose ids are those of cells."""


class CodeTasks(WorkerFeature):
    """The tools, if the deployment has sandboxes. When a response has ended, the sandbox may forget
    its results, and code that still runs is interrupted."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        settings = resources.settings.code
        self._sandboxes = Sandboxes(settings.sandboxes, settings.token.get_secret_value())
        self._containers = Containers(
            resources.settings, resources.pool, resources.storage, resources.policies
        )
        self._cells = Cells(self._containers, self._sandboxes)
        if settings.sandboxes:
            resources.tools["code_interpreter"] = self._code_interpreter
            resources.tools["shell"] = self._shell
            resources.on_ended.append(self._forget)

    def start(self) -> None:
        """Begins to end sessions that are over."""
        if self._sandboxes.urls:
            ending = SessionsEnd(self.resources.pool, self._sandboxes)
            self.resources.side_tasks.start(ending.run(self.resources.due_poll), "sessions_end")

    async def close(self) -> None:
        """Closes the connections to sandboxes."""
        await self._sandboxes.close()

    def _forget(self, line: EndedLine) -> None:
        cells = [item["id"] for item in line.output if item["type"] in _CELLS]
        if cells:
            self.resources.side_tasks.start(self._cells.forget(cells), "forget-cells")

    def _code_interpreter(self, tool: Mapping[str, Any], context: ToolContext) -> ToolProvider:
        return CodeInterpreter(tool, context, self._cells, self._containers)

    def _shell(self, tool: Mapping[str, Any], context: ToolContext) -> ToolProvider:
        return ContainerShell(tool, context, self._cells, self._containers)


FEATURE = CodeTasks
