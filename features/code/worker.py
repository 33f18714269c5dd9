"""Running code in a worker: the tools `code_interpreter` and `shell`."""

from collections.abc import Mapping
from typing import Any

from features.code.sessions_end import SessionsEnd
from features.code.store import Containers
from features.code.tool.cells import Cells
from features.code.tool.client import Sandboxes
from features.code.tool.providers import CodeInterpreter, ContainerShell
from models.ended_line import EndedLine
from worker.run.resources import Resources, WorkerFeature
from worker.tools.provider import ToolContext, ToolProvider

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
