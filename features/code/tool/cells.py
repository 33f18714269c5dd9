"""One cell: code or commands of one call, run at most once, with a result that survives workers.

The id of a cell is that of its call's item. In this order: the session, the note in the database in
which session the cell begins, the request to the sandbox, its result, the files that it changed.
The tool loop stores the result; the worker deletes it at the sandbox when the response has ended.
So a worker that takes over finds in the database in which session the cell may have run. It asks
there for the same cell, and if that session is lost the code is not run again (docs/code.md).
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from features.code.containers import (
    Container,
    ContainerFile,
    ContainerGone,
    ContainerStore,
    FileRefused,
)
from features.code.tool.client import (
    Place,
    Sandboxes,
    SandboxFull,
    SandboxUnavailable,
    SessionLost,
)
from features.code.tool.sessions import Sessions
from worker.tools.provider import ToolCallError

logger = structlog.get_logger()

_SILENCE = 10.0
"""Seconds without an answer of a sandbox, after which what runs there is lost."""
_PAUSE = 0.5
_MAX_FILES = 100
"""Changed files of one cell that are kept."""
GONE = "The container has expired or was deleted, with its files. The code was not run."
_LOST = (
    "The sandbox was lost while the code ran. What it did may or may not have happened; it was not "
    "run again. Variables are lost; files that earlier calls left in /mnt/data are kept."
)
_REBUILT = (
    "Note: the session was lost since the last call. Variables, imports and installed packages are "
    "gone; the files in /mnt/data are there."
)


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """What a cell did."""

    result: Mapping[str, Any]
    """As the sandbox reports it (features/code/sandbox/server.py)."""
    files: Sequence[ContainerFile]
    """Those that it changed, and that are kept."""
    notes: Sequence[str]
    """What the model should know besides."""


class Cells:
    """Runs cells of all responses of a process."""

    def __init__(self, containers: ContainerStore, sandboxes: Sandboxes) -> None:
        self._containers = containers
        self._sandboxes = sandboxes
        self._sessions = Sessions(containers, sandboxes)

    async def run(self, container: Container, cell: str, body: dict[str, Any]) -> CellOutcome:
        """Runs a cell, or waits for the one that another worker has begun. Raises ToolCallError."""
        try:
            session = await self._sessions.open(container)
        except ContainerGone as error:
            raise ToolCallError(GONE) from error
        place = session.place
        if await self._containers.begin_cell(cell, container.id, place.session) != place.session:
            raise ToolCallError(_LOST)
        try:
            result = await self._answered(place, cell, body)
            files, notes = await self._kept_files(container, place, result)
        except (SessionLost, SandboxUnavailable, SandboxFull) as error:
            logger.warning("sandbox_lost", sandbox=place.sandbox, cell=cell, error=str(error))
            raise ToolCallError(_LOST) from error
        await self._containers.end_cell(cell, result)
        if session.is_rebuilt:
            notes.insert(0, _REBUILT)
        return CellOutcome(result, files, notes)

    async def forget(self, cells: Sequence[str]) -> None:
        """Tells the sandboxes that results are stored, or that nobody wants them: the code is
        interrupted. Raises nothing: a sandbox forgets results with the session, and stops code
        after its time."""
        for cell in cells:
            try:
                found = await self._containers.find_cell(cell)
                if found is not None:
                    await self._sandboxes.end(Place(*found), cell)
            except (SessionLost, SandboxUnavailable, SandboxFull) as error:
                logger.info("cell_not_forgotten", cell=cell, error=str(error))
            except Exception:
                logger.exception("cell_not_forgotten", cell=cell)

    async def _answered(self, place: Place, cell: str, body: dict[str, Any]) -> Mapping[str, Any]:
        """The result of the cell. A sandbox that does not answer for a while has lost it."""
        heard_at = time.monotonic()
        is_begun = False
        while True:
            try:
                if not is_begun:
                    await self._sandboxes.begin(place, cell, body)
                    is_begun = True
                result = await self._sandboxes.result(place, cell)
            except (SandboxUnavailable, SandboxFull):
                if time.monotonic() - heard_at > _SILENCE:
                    raise
                await asyncio.sleep(_PAUSE)
                continue
            if result is not None:
                return result
            heard_at = time.monotonic()

    async def _kept_files(
        self, container: Container, place: Place, result: Mapping[str, Any]
    ) -> tuple[list[ContainerFile], list[str]]:
        """Stores the files that the cell has changed. Returns them, and why others are not kept."""
        files: list[ContainerFile] = []
        notes: list[str] = []
        for path in result["deleted"]:
            await self._containers.delete_file(container.id, path)
        for changed in result["changed"][:_MAX_FILES]:
            path = changed["path"]
            try:
                content = partial(self._sandboxes.read_file, place, path)
                files.append(
                    await self._containers.store_file(container, path, content, place.session)
                )
            except FileRefused as error:
                notes.append(f"Note: {path} is not kept: {error}")
            except SessionLost:
                notes.append("Note: what the code changed is not kept: its session has ended.")
                break
        if (rest := len(result["changed"]) - _MAX_FILES) > 0:
            notes.append(f"Note: {rest} more changed files are not kept: put them in one archive.")
        if hidden := result.get("hidden"):
            notes.append(
                f"Note: {hidden} changed files are not kept: a name must be text without line "
                "breaks, of at most 1000 bytes with its folders. Rename them."
            )
        return files, notes
