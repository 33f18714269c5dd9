"""One cell: code or commands of one call, run at most once, with a result that survives workers.

The id of a cell is that of its call's item. In this order: the session, the note in the database in
which session the cell begins, the request to the sandbox, its result, the files that it changed.
The tool loop stores the result; the worker deletes it at the sandbox when the response has ended.
So a worker that takes over finds in the database in which session the cell may have run. It asks
there for the same cell, and if that session is lost the code is not run again (docs/code.md).

The session of a container: where it is, and that it has the container's files.

A container has one session at a time, on one of the sandboxes. If its session is lost, the next
call gets a new one, on the sandbox with the most room, with the files that the file storage has.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

import structlog

from features.code.containers import (
    Container,
    ContainerFile,
    ContainerGone,
    ContainerStore,
    FileRefused,
)
from features.code.tool import client
from features.code.tool.client import (
    Place,
    Sandboxes,
    SandboxFull,
    SandboxUnavailable,
    SessionLost,
)
from models.load.fair_queue import FairQueue
from worker.tools.provider import ToolCallError

_WAIT = 20.0
"""Seconds that a call waits for room on a sandbox."""
_OPENED_TOGETHER = 4
"""Sessions that a worker opens at a time. One project has at most three of them: it does not get
all room of full sandboxes."""
_TRIES = 3
"""Looks at a sandbox that does not answer, before its sessions count as lost."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that has all files of its container."""

    place: client.Place
    is_rebuilt: bool
    """An earlier session of the container was lost, with its variables."""


class Sessions:
    """The sessions of the containers that this process works with."""

    def __init__(self, containers: ContainerStore, sandboxes: client.Sandboxes) -> None:
        self._containers = containers
        self._sandboxes = sandboxes
        self._turns = FairQueue(_OPENED_TOGETHER)
        """Held while a session is opened, or room for one is waited for."""
        self._locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    async def open(self, container: Container) -> OpenSession:
        """The session of a container. Raises ToolCallError if no sandbox has room or answers."""
        lock = self._locks.setdefault(container.id, asyncio.Lock())
        deadline = time.monotonic() + _WAIT
        async with lock:
            while True:
                try:
                    place = await self._open(container.id)
                    is_rebuilt = container.session not in (None, place.session)
                    return OpenSession(place, is_rebuilt)
                except client.DiskFull as error:
                    raise ToolCallError(_TOO_MUCH) from error
                except (client.SessionLost, client.SandboxUnavailable, client.SandboxFull) as error:
                    logger.warning("session_not_opened", error=str(error))
                    if time.monotonic() > deadline:
                        raise ToolCallError(_AWAY) from error
                await asyncio.sleep(_PAUSE)

    async def _open(self, container_id: UUID) -> client.Place:
        container = await self._containers.get(container_id)
        place = await self._live_place(container)
        if place is None:
            place = await self._placed(container)
        await self._bring_files(container, place)
        return place

    async def _live_place(self, container: Container) -> client.Place | None:
        """Where the session is; None if it was lost, or there was none."""
        if container.sandbox is None or container.session is None:
            return None
        place = client.Place(container.sandbox, container.session)
        for attempt in range(_TRIES):
            try:
                return place if await self._sandboxes.has(place) else None
            except (client.SandboxUnavailable, client.SandboxFull) as error:
                logger.warning("sandbox_unavailable", sandbox=place.sandbox, error=str(error))
            await asyncio.sleep(_PAUSE * attempt)
        return None

    async def _placed(self, container: Container) -> client.Place:
        """A new session. Of two workers that open one at the same time, both get the first."""
        opened = await self._new_session(container)
        try:
            stored = await self._containers.place(
                container.id, container.session, opened.sandbox, opened.session
            )
        except ContainerGone:
            await self._sandboxes.close_session(opened)
            raise
        assert stored.sandbox is not None
        assert stored.session is not None
        place = client.Place(stored.sandbox, stored.session)
        if place != opened:
            await self._sandboxes.close_session(opened)
        return place

    async def _new_session(self, container: Container) -> client.Place:
        """Opens a session on the sandbox with the most room. If all are full, projects wait a while
        in turn for the room that is next."""
        place, answer = None, _FULL
        try:
            async with asyncio.timeout(_WAIT), self._turns.permit(container.project_id):
                while True:
                    free = await self._free_sessions()
                    if (place := await self._try_to_open(container, free)) is not None:
                        return place
                    answer = _FULL if free else _AWAY
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            raise ToolCallError(answer) from None

    async def _try_to_open(
        self, container: Container, free: Mapping[str, int]
    ) -> client.Place | None:
        """A new session; None if no sandbox has room now. `free`: as `_free_sessions` returns."""
        for sandbox in sorted(free, key=lambda each: free[each], reverse=True):
            try:
                return await self._sandboxes.open(sandbox, _session_request(container))
            except (client.SandboxFull, client.SessionLost):
                continue
            except client.SandboxUnavailable as error:
                logger.warning("sandbox_unavailable", sandbox=sandbox, error=str(error))
        return None

    async def _free_sessions(self) -> dict[str, int]:
        """Sandbox -> how many more sessions it can hold. Those that do not answer are left out."""
        free: dict[str, int] = {}
        for sandbox in self._sandboxes.urls:
            try:
                free[sandbox] = await self._sandboxes.free_sessions(sandbox)
            except (client.SandboxUnavailable, client.SandboxFull, client.SessionLost) as error:
                logger.warning("sandbox_unavailable", sandbox=sandbox, error=str(error))
        return free

    async def _bring_files(self, container: Container, place: client.Place) -> None:
        """Writes the files that the session lacks: those of a lost one, and those that clients have
        added since."""
        missing = await self._containers.missing_files(container.id, place.session)
        for file in missing:
            await self._sandboxes.put_file(place, file.path, self._containers.content(file))
        if missing:
            await self._containers.mark_present([each.id for each in missing], place.session)


def _session_request(container: Container) -> dict[str, Any]:
    return {
        "container": container.id.hex,
        "project": container.project_id.hex,
        "memory_limit": container.memory_limit,
        "allowed_domains": container.allowed_domains,
    }


_FULL = "The code was not run: all sandboxes are in use now. Try again later, or answer without it."
_TOO_MUCH = (
    "The code was not run: the container's files are larger than a session may hold. Tell the user."
)
_AWAY = "The code was not run: no sandbox can be reached now. Answer without it."


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
