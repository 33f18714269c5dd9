"""The tools `code_interpreter` and `shell` of one request (docs/tools.md)."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from features.code.containers import (
    AutoContainer,
    Container,
    ContainerFile,
    ContainerGone,
    ContainerRefused,
    ContainerStore,
)
from features.code.tool.cells import GONE, CellOutcome, Cells
from models.ids import CONTAINER, CONTAINER_FILE, admin_id, new_item_id, parse_admin_id
from models.wire.events import Item
from models.wire.pairing import match_outputs
from models.wire.tools import allowed_domains_of, container_of, is_own_container, may_run_code
from worker.tools.provider import ToolCallError, ToolContext, ToolResult
from worker.translation.functions import ServerFunction
from worker.translation.items.citations import DATA_FOLDER, MadeFile, made_files_text
from worker.translation.items.client_tools import BUILT_IN_TOOLS
from worker.translation.items.server_calls import (
    OpenCallFactory,
    OpenCodeCall,
    OpenContainerShell,
    OpenShellOutput,
)

_ABOUT_FILES = (
    "The user's files are in /mnt/data. Save what the user should get there, and mention it in "
    "your answer as a link: [name](sandbox:/mnt/data/name). "
)
_ABOUT_HOSTS = (
    "The network has these hosts only: {}. They are reached through the HTTP proxy that is set in "
    "the environment; there is no DNS."
)
_ABOUT_ANY_NETWORK = (
    "There is no network, unless HTTP_PROXY is set in the environment: then the hosts of the "
    "container's allow-list are reached through that proxy."
)
_CODE_DESCRIPTION = (
    "Runs Python code, as a cell of a notebook: variables stay between calls, and the value of the "
    "last expression is shown. numpy, pandas, matplotlib, openpyxl and pillow are installed; open "
    f"figures are saved as files. {_ABOUT_FILES}"
)
_CODE_PARAMETERS = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The Python code to run."}},
    "required": ["code"],
    "additionalProperties": False,
}
_SHELL_DESCRIPTION = (
    "Runs shell commands in a Linux sandbox; the working directory is /mnt/data. The output has "
    f"each command's standard output, standard error and exit code. {_ABOUT_FILES}"
)
_COMMANDS = BUILT_IN_TOOLS["shell_call"].parameters["properties"]["commands"]
_SHELL_PARAMETERS = {
    "type": "object",
    "properties": {"commands": _COMMANDS},
    "required": ["commands"],
    "additionalProperties": False,
}
"""Without the limits that a shell of the client has: weak models set them to nothing."""
_NEW_CONTAINER = (
    "Note: the container of earlier calls has expired or has another network policy. This is a new "
    "one, without the files of those calls."
)


class _ContainerTool:
    """What both tools have in common: the container, and where it runs."""

    in_order = True
    kind: str
    """The type of the items that name the container."""

    def __init__(
        self,
        tool: Mapping[str, Any],
        context: ToolContext,
        cells: Cells,
        containers: ContainerStore,
    ) -> None:
        assert context.project is not None
        self.time: float | None = 4 * context.settings.code.wall_time.total_seconds() + 120
        self._is_ours = may_run_code(tool)
        self._context = context
        self._project: UUID = context.project
        self._max_text = context.settings.tools.answer // 2
        self._cells = cells
        self._containers = containers
        self._calls: dict[str, Item] = {}
        """call_id -> the call, of shells in containers."""
        named = container_of(tool) if self._is_ours else None
        self._auto = _auto_container(named) if isinstance(named, Mapping) else None
        self._container = named if isinstance(named, str) else ""

    def is_repeatable(self, item: Item) -> bool:  # noqa: ARG002 - the sandbox runs a cell once
        return True

    async def close(self) -> None:
        """Does nothing: connections belong to the process."""

    def _note_history(self, history: Sequence[Item]) -> None:
        """Takes the container of the last call, if the request names none."""
        for item in history if self._auto is not None else ():
            if item["type"] == self.kind and is_own_container(used := _container_in(item)):
                self._container = used

    def _container_id(self) -> str:
        """The container of the next call. A new one is made when its first call runs."""
        self._container = self._container or new_item_id(CONTAINER)
        return self._container

    async def _run(
        self, item: Item, container_id: str, body: dict[str, Any]
    ) -> tuple[Container, CellOutcome, list[str]]:
        """Runs a cell in a container, or in a new one if that has expired and the request names
        none: its id is made from the call's, so that every worker finds the same."""
        notes: list[str] = []
        try:
            container = await self._take(container_id)
        except ContainerGone:
            if self._auto is None:
                raise ToolCallError(GONE) from None
            notes.append(_NEW_CONTAINER)
            container = await self._take(f"{CONTAINER}_{item['id'].rpartition('_')[2]}")
        outcome = await self._cells.run(container, item["id"], body)
        return container, outcome, [*notes, *outcome.notes]

    async def _take(self, container_id: str) -> Container:
        parsed = parse_admin_id(CONTAINER, container_id)
        if parsed is None:
            raise ToolCallError(GONE)
        try:
            container = await self._containers.take(
                self._project, parsed, self._auto, self._context.api_key
            )
        except ContainerRefused as error:
            raise ToolCallError(f"The code was not run: {error}") from error
        if self._auto is None or {*container.allowed_domains} == {*self._auto.allowed_domains}:
            return container
        raise ContainerGone  # the request wants another network than that of earlier calls

    @property
    def _about_network(self) -> str:
        if self._auto is None:
            return _ABOUT_ANY_NETWORK
        domains = ", ".join(self._auto.allowed_domains)
        return _ABOUT_HOSTS.format(domains) if domains else "There is no network."


class CodeInterpreter(_ContainerTool):
    """The tool `code_interpreter`. It offers no function for a container of the upstream."""

    kind = OpenCodeCall.kind

    def pending(self, history: Sequence[Item]) -> list[OpenCallFactory]:
        self._note_history(history)
        return []

    def functions(self) -> list[ServerFunction]:
        if not self._is_ours:
            return []
        return [
            ServerFunction(
                {"type": "code_interpreter"},
                "code_interpreter",
                self._open,
                _CODE_DESCRIPTION + self._about_network,
                _CODE_PARAMETERS,
            )
        ]

    def owns(self, item: Item) -> bool:
        return self._is_ours and item["type"] == self.kind

    async def run(self, item: Item) -> ToolResult:
        """Runs the code. An exception of the code is a result. Raises ToolCallError."""
        if not item["code"].strip():
            raise ToolCallError("There is no code: the function needs 'code'.")
        body = {"kind": "python", "code": item["code"]}
        container, outcome, notes = await self._run(item, item["container_id"], body)
        result = outcome.result
        texts = (result["stdout"], result["value"], result["stderr"], result["error"])
        logs = "\n".join(text.rstrip("\n") for text in texts if text)[-self._max_text :]
        figures = {each["path"] for each in result["changed"] if each.get("figure")}
        container_id = admin_id(CONTAINER, container.id)
        outputs = [{"type": "logs", "logs": logs}] if logs else []
        outputs += [
            {"type": "image", "url": _content_url(container_id, file)}
            for file in outcome.files
            if file.path in figures
        ]
        shown = [*notes, logs or "(The code printed nothing.)", *_end_of(outcome)]
        return ToolResult(
            {"container_id": container_id, "outputs": outputs},
            tool_output=_with_files(container_id, outcome, shown),
        )

    def _open(self, output_index: int, new_id: Any) -> OpenCodeCall:
        return OpenCodeCall(
            output_index, new_id(OpenCodeCall.prefix), container_id=self._container_id()
        )


class ContainerShell(_ContainerTool):
    """The tool `shell` in a container. A call is completed at once; its output is an item that this
    server opens behind it."""

    kind = OpenContainerShell.kind

    def pending(self, history: Sequence[Item]) -> list[OpenCallFactory]:
        self._note_history(history)
        if not self._is_ours:
            return []
        answered = match_outputs(history)
        self._calls = {}
        waiting: list[Item] = []
        for position, item in enumerate(history):
            if item.get("role") in _CLIENT_ROLES:
                waiting = []  # calls of a response that was stopped
            elif item["type"] == self.kind and is_own_container(_container_in(item)):
                self._calls[item["call_id"]] = item
                if position not in answered and "answer" not in item:
                    waiting.append(item)
        return [_output_factory(call) for call in waiting if call["status"] == "completed"]

    def functions(self) -> list[ServerFunction]:
        if not self._is_ours:
            return []
        return [
            ServerFunction(
                {"type": "shell"},
                "shell",
                self._open,
                _SHELL_DESCRIPTION + self._about_network,
                _SHELL_PARAMETERS,
            )
        ]

    def owns(self, item: Item) -> bool:
        return item["type"] == OpenShellOutput.kind and item["call_id"] in self._calls

    async def run(self, item: Item) -> ToolResult:
        """Runs the commands, one after the other. Raises ToolCallError."""
        call = self._calls[item["call_id"]]
        action = call["action"]
        if not action["commands"]:
            raise ToolCallError("There are no commands: the function needs a list 'commands'.")
        body = {"kind": "shell", **action}
        container, outcome, notes = await self._run(item, _container_in(call), body)
        output = [
            {
                "stdout": each["stdout"],
                "stderr": each["stderr"],
                "outcome": {"type": "timeout"}
                if each["exit_code"] is None
                else {"type": "exit", "exit_code": each["exit_code"]},
            }
            for each in outcome.result["outputs"]
        ]
        limit = {name: action[name] for name in ("max_output_length",) if name in action}
        shown = [*notes, msgspec.json.encode(output).decode(), *_end_of(outcome)]
        return ToolResult(
            {"output": output, **limit},
            tool_output=_with_files(admin_id(CONTAINER, container.id), outcome, shown),
        )

    def _open(self, output_index: int, new_id: Any) -> OpenContainerShell:
        return OpenContainerShell(
            output_index,
            new_id(OpenContainerShell.prefix),
            call_id=new_id("call"),
            environment={"type": "container_reference", "container_id": self._container_id()},
        )


def _output_factory(call: Item) -> OpenCallFactory:
    def open_output(output_index: int, new_id: Any) -> OpenShellOutput:
        item_id = new_id(OpenShellOutput.prefix)
        return OpenShellOutput(output_index, item_id, call_id=call["call_id"])

    return open_output


def _container_in(item: Item) -> Any:
    """The id of the container that an item of a call names."""
    environment = item.get("environment")
    named = environment if isinstance(environment, Mapping) else item
    return named.get("container_id")


def _auto_container(described: Mapping[str, Any]) -> AutoContainer:
    return AutoContainer(
        memory_limit=described.get("memory_limit"),
        file_ids=tuple(described.get("file_ids", ())),
        allowed_domains=tuple(allowed_domains_of(described)),
    )


def _content_url(container_id: str, file: ContainerFile) -> str:
    """Where a client reads a file, below the server's base URL."""
    return f"/v1/containers/{container_id}/files/{admin_id(CONTAINER_FILE, file.id)}/content"


def _with_files(container_id: str, outcome: CellOutcome, texts: Sequence[str]) -> str:
    """What the model gets: the files first, by which texts cite them, then the rest."""
    files = [
        MadeFile(
            DATA_FOLDER + file.path, admin_id(CONTAINER_FILE, file.id), container_id, file.bytes
        )
        for file in outcome.files
    ]
    return made_files_text(files) + "\n".join(texts)


def _end_of(outcome: CellOutcome) -> list[str]:
    """How the code ended, if not by itself."""
    end = _ENDS.get(outcome.result["status"])
    return [] if end is None else [end]


_CLIENT_ROLES = ("user", "system", "developer")
_ENDS = {
    "timeout": "The code was stopped: it ran too long.",
    "cpu": "The code was stopped: it used too much CPU time. Compute less in one call.",
    "memory": "The code was stopped: it used too much memory. Variables are lost.",
    "processes": "The code was stopped: it started too many processes or threads.",
    "disk": (
        "The code was stopped: it left too many or too large files. The session has ended: "
        "variables are lost, and files that earlier calls left are kept."
    ),
    "interrupted": "The code was interrupted.",
    "died": "The process of the session died. Variables are lost; the files in /mnt/data are kept.",
}
"""`status` of a result -> what the model gets to know."""
