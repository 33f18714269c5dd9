"""What a container is to those who work with it: its row, its files, and the store's operations.

A container is a folder of files and, while code runs in it, a session on a sandbox (docs/code.md).
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID


class ContainerGone(Exception):
    """The project has no such container, or it has expired."""


class ContainerRefused(Exception):
    """The container may not be used now: a quota, or a file that is not there. The message is for
    the model."""


class FileRefused(Exception):
    """The file is not kept: too large, or over a quota. The message is for the model."""


@dataclass(frozen=True, slots=True)
class AutoContainer:
    """A container that is made when it is needed."""

    memory_limit: str | None = None
    """`1g`, `4g`, `16g` or `64g`; None: the default."""
    file_ids: tuple[str, ...] = ()
    """Files of the project that it gets."""
    allowed_domains: tuple[str, ...] = ()
    """Hosts that its code may reach."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container's row."""

    id: UUID
    project_id: UUID
    memory_limit: str | None
    sandbox: str | None
    """Base URL of the sandbox that has its session; None: it has none yet."""
    session: str | None
    """The sandbox's id of that session, which is never used again."""
    allowed_domains: Sequence[str] = ()
    """Hosts that its code may reach."""


@dataclass(frozen=True, slots=True)
class ContainerFile:
    """A file of a container."""

    id: UUID
    path: str
    """Below `/mnt/data/`."""
    bytes: int
    file_id: UUID | None = None
    """Names its content in the file storage."""


class ContainerStore(Protocol):
    """The containers of all projects, as workers use them."""

    async def take(
        self, project: UUID, container: UUID, auto: AutoContainer | None, api_key: UUID | None
    ) -> Container:
        """The container, which is used now; made if it is not there and `auto` says how. Raises
        ContainerGone and ContainerRefused."""
        ...

    async def get(self, container: UUID) -> Container:
        """The row as it is now. Raises ContainerGone."""
        ...

    async def place(
        self, container: UUID, before: str | None, sandbox: str, session: str
    ) -> Container:
        """Stores a new session in the place of `before`, unless another worker has done so; returns
        the row as it is then."""
        ...

    async def missing_files(self, container: UUID, session: str) -> Sequence[ContainerFile]:
        """The files that the session does not have."""
        ...

    async def mark_present(self, files: Sequence[UUID], session: str) -> None:
        """Notes that the session has these files."""
        ...

    def content(self, file: ContainerFile) -> AsyncIterator[bytes]:
        """What the file storage has of a file."""
        ...

    async def store_file(
        self,
        container: Container,
        path: str,
        content: Callable[[], AsyncIterator[bytes]],
        session: str,
    ) -> ContainerFile:
        """Stores a file that the session has made or changed; the same path keeps its id.
        `content`: reads it, from its beginning. Raises FileRefused."""
        ...

    async def delete_file(self, container: UUID, path: str) -> None:
        """Deletes a file that code has deleted."""
        ...

    async def begin_cell(self, cell: str, container: UUID, session: str) -> str:
        """Notes in which session a cell begins, unless that is noted already; returns the noted
        one."""
        ...

    async def end_cell(self, cell: str, result: Any) -> None:
        """Notes what the cell has used (`cpu_ms`, `wall_ms` of the result)."""
        ...

    async def find_cell(self, cell: str) -> tuple[str, str] | None:
        """Sandbox and session of a cell; None if it has not begun, or its session is lost."""
        ...
