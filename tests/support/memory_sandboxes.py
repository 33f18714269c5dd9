"""Sandboxes and a store of containers in memory, with the rules of the real ones, for tests of what
a worker does with them."""

import itertools
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from features.code.containers import (
    AutoContainer,
    Container,
    ContainerFile,
    ContainerGone,
    FileRefused,
)
from features.code.tool.client import (
    Place,
    Sandboxes,
    SandboxFull,
    SandboxUnavailable,
    SessionLost,
)
from models.ids import new_uuid

OK: dict[str, Any] = {
    "status": "ok",
    "stdout": "",
    "value": "",
    "stderr": "",
    "error": "",
    "outputs": [],
    "changed": [],
    "deleted": [],
    "cpu_ms": 1,
    "wall_ms": 1,
}


@dataclass
class MemorySandboxes(Sandboxes):
    """Sandboxes that run nothing: a cell's result is what `results` says of its code."""

    room: dict[str, int]
    """URL -> sessions."""
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    """id of a cell -> how often it was run."""
    away: set[str] = field(default_factory=set)
    """Sandboxes that do not answer."""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """session -> its files."""
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    """session -> id of a cell -> its code, empty once it is forgotten."""
    forgotten: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    """Cells that have no result yet."""
    _where: dict[str, str] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def urls(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.room)

    def lose(self, sandbox: str) -> None:
        """The sandbox starts again without its sessions."""
        self._where = {each: at for each, at in self._where.items() if at != sandbox}

    def _require(self, place: Place) -> None:
        if place.sandbox in self.away:
            raise SandboxUnavailable(place.sandbox)
        if self._where.get(place.session) != place.sandbox:
            raise SessionLost(place.session)

    async def free_sessions(self, sandbox: str) -> int:
        if sandbox in self.away:
            raise SandboxUnavailable(sandbox)
        return self.room[sandbox] - list(self._where.values()).count(sandbox)

    async def open(self, sandbox: str, session: dict[str, Any]) -> Place:
        if await self.free_sessions(sandbox) <= 0:
            raise SandboxFull(sandbox)
        name = f"s{next(self._numbers)}"
        self._where[name] = sandbox
        self.files[name], self.cells[name] = {}, {}
        return Place(sandbox, name)

    async def has(self, place: Place) -> bool:
        try:
            self._require(place)
        except SessionLost:
            return False
        return True

    async def close_session(self, place: Place) -> None:
        self._where.pop(place.session, None)

    async def put_file(self, place: Place, path: str, content: AsyncIterator[bytes]) -> None:
        self._require(place)
        self.files[place.session][path] = b"".join([chunk async for chunk in content])

    async def read_file(self, place: Place, path: str) -> AsyncGenerator[bytes, None]:
        self._require(place)
        yield self.files[place.session][path]

    async def begin(self, place: Place, cell: str, body: dict[str, Any]) -> None:
        self._require(place)
        if cell not in self.cells[place.session]:
            self.cells[place.session][cell] = body["code"]
            self.runs[cell] += 1

    async def result(self, place: Place, cell: str) -> dict[str, Any] | None:
        self._require(place)
        if cell in self.running:
            return None
        return {**OK, **self.results.get(self.cells[place.session][cell], {})}

    async def end(self, place: Place, cell: str) -> None:
        self._require(place)
        self.forgotten.append(cell)


@dataclass
class MemoryContainers:
    """A `ContainerStore`. Its files are those that `missing_files` looks at."""

    rows: dict[UUID, Container] = field(default_factory=dict)
    gone: set[UUID] = field(default_factory=set)
    files: dict[str, tuple[ContainerFile, bytes, str]] = field(default_factory=dict)
    """path -> the file, its content, the session that has it."""
    cells: dict[str, tuple[UUID, str]] = field(default_factory=dict)
    too_large: set[str] = field(default_factory=set)

    async def take(
        self,
        project: UUID,
        container: UUID,
        auto: AutoContainer | None,
        api_key: UUID | None,
    ) -> Container:
        if container in self.gone or (auto is None and container not in self.rows):
            raise ContainerGone
        wanted = auto or AutoContainer()
        made = Container(
            container, project, wanted.memory_limit, None, None, wanted.allowed_domains
        )
        return self.rows.setdefault(container, made)

    async def get(self, container: UUID) -> Container:
        return self.rows[container]

    async def place(
        self, container: UUID, before: str | None, sandbox: str, session: str
    ) -> Container:
        row = self.rows[container]
        if row.session == before:
            self.rows[container] = replace(row, sandbox=sandbox, session=session)
        return self.rows[container]

    async def missing_files(self, container: UUID, session: str) -> Sequence[ContainerFile]:
        return [file for file, _, has in self.files.values() if has != session]

    async def mark_present(self, files: Sequence[UUID], session: str) -> None:
        for path, (file, content, _) in self.files.items():
            if file.id in files:
                self.files[path] = (file, content, session)

    async def content(self, file: ContainerFile) -> AsyncGenerator[bytes, None]:
        yield self.files[file.path][1]

    async def store_file(
        self,
        container: Container,
        path: str,
        content: Callable[[], AsyncIterator[bytes]],
        session: str,
    ) -> ContainerFile:
        if path in self.too_large:
            raise FileRefused("it is too large.")
        known = self.files.get(path)
        stored = b"".join([chunk async for chunk in content()])
        file = ContainerFile(known[0].id if known else new_uuid(), path, len(stored))
        self.files[path] = (file, stored, session)
        return file

    async def delete_file(self, container: UUID, path: str) -> None:
        self.files.pop(path, None)

    async def begin_cell(self, cell: str, container: UUID, session: str) -> str:
        return self.cells.setdefault(cell, (container, session))[1]

    async def end_cell(self, cell: str, result: Any) -> None:
        pass

    async def find_cell(self, cell: str) -> tuple[str, str] | None:
        if cell not in self.cells:
            return None
        row = self.rows[self.cells[cell][0]]
        if row.sandbox is None or row.session != self.cells[cell][1]:
            return None
        return row.sandbox, row.session
