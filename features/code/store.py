"""Containers as workers use them: `ContainerStore` on PostgreSQL and the file storage, and what
code of a project may use at a time and on one day (docs/limits.md, "Per project")."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any
from uuid import UUID

from features.code import queries
from features.code.containers import (
    AutoContainer,
    Container,
    ContainerFile,
    ContainerGone,
    ContainerRefused,
    FileRefused,
)
from features.code.service import NewContent, link_values, store_content
from features.files.objects import FilePurpose
from features.files.queries import ABANDON_FILE, FILE_PARTS, INSERT_FILE, LOCK_PROJECT
from features.files.service import exceeded_quota
from models.config.groups import QuotaSettings
from models.config.settings import Settings
from models.db.arrays import Texts, Uuids
from models.db.database import Pool, execute, fetch, fetch_when_available, retry_while_unavailable
from models.db.queries.quotas import CODE_USE, USED_CPU
from models.files.content import FileGone, read_content, write_part
from models.files.storage import FileStorage, StorageError
from models.ids import new_uuid, unix_seconds
from models.project_policies import ProjectPolicies

_GIB = 1024**3
_WAIT = 20.0
"""Seconds that a call waits for the end of another session of its project."""
_PAUSE = 0.5


class CodeQuotas:
    """The quotas of all projects, as one worker judges them."""

    def __init__(self, pool: Pool, common: QuotaSettings, policies: ProjectPolicies) -> None:
        """`common`: of projects without quotas of their own."""
        self._pool = pool
        self._common = common
        self._policies = policies

    async def require(self, container: Container) -> None:
        """Before each call. A container without a session gets the place of one: if the project has
        none left, that of its session which was not used for longest. Raises ContainerRefused."""
        own = (await self._policies.policy(container.project_id)).quotas
        seconds = _limit("code_seconds_per_day", own, self._common)
        if seconds:
            values = {"project": container.project_id}
            [used] = await fetch_when_available(self._pool, USED_CPU, values)
            if used >= seconds * 1000 and not await self._has_open_cell(container):
                raise ContainerRefused(
                    f"the project has used its {seconds} CPU seconds of code of this day (UTC)."
                )
        sessions = _limit("code_sessions", own, self._common)
        memory = _limit("code_memory_bytes", own, self._common)
        if container.sandbox is None and (sessions or memory):
            await self._reserve_within(_WAIT, container, sessions, memory)

    async def _has_open_cell(self, container: Container) -> bool:
        """Then a worker that takes over a call may want its result, which must not be refused."""
        values = {"id": container.id}
        [has] = await fetch_when_available(self._pool, queries.HAS_OPEN_CELL, values)
        return has

    async def _reserve_within(
        self, seconds: float, container: Container, sessions: int, memory: int
    ) -> None:
        deadline = time.monotonic() + seconds
        while not await retry_while_unavailable(lambda: self._reserve(container, sessions, memory)):
            if time.monotonic() > deadline:
                limits = [f"{sessions} sessions of code at the same time"] if sessions else []
                limits += [f"{memory} bytes of memory for them"] if memory else []
                raise ContainerRefused(
                    f"the project may have {' and '.join(limits)}, and all are in use. Try again "
                    "later, or answer without it."
                )
            await asyncio.sleep(_PAUSE)

    async def _reserve(self, container: Container, sessions: int, memory: int) -> bool:
        """One transaction at a time of a project. False: what it may have is in use."""
        wanted = int((container.memory_limit or "1g")[:-1]) * _GIB
        values = {"project": container.project_id, "id": container.id}
        async with self._pool.connection() as connection, connection.transaction():
            await fetch(connection, LOCK_PROJECT, values)
            while True:
                [use] = await fetch(connection, CODE_USE, values)
                is_free = not sessions or use.sessions < sessions
                if is_free and (not memory or use.memory + wanted <= memory):
                    await execute(connection, queries.RESERVE_SESSION, values)
                    return True
                if not await fetch(connection, queries.STOP_IDLE, values):
                    return False


def _limit(name: str, own: QuotaSettings, common: QuotaSettings) -> int:
    """0: there is none."""
    limit = getattr(own, name)
    return (getattr(common, name) if limit is None else limit) or 0


class Containers:
    """The containers of all projects, in a worker."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        storage: FileStorage | None,
        policies: ProjectPolicies,
    ) -> None:
        """`storage` None: this server stores no files, and runs no code."""
        self._settings = settings
        self._pool = pool
        self._policies = policies
        self._quotas = CodeQuotas(pool, settings.quotas, policies)
        self._storage = storage

    async def take(
        self, project: UUID, container: UUID, auto: AutoContainer | None, api_key: UUID | None
    ) -> Container:
        """As ContainerStore. An id that is older than the longest life without use makes no new
        container: it had one."""
        if self._storage is None:
            raise ContainerRefused("this server stores no files.")
        idle_time = self._settings.code.idle_time
        if auto is not None and unix_seconds(container) + idle_time.total_seconds() > time.time():
            values = {
                "id": container,
                "project": project,
                "api_key": api_key,
                "name": "auto",
                "memory_limit": auto.memory_limit,
                "idle_time": idle_time,
                "allowed_domains": Texts(auto.allowed_domains),
            }
            await fetch_when_available(self._pool, queries.INSERT_CONTAINER, values)
        values = {"id": container, "project": project}
        rows = await fetch_when_available(self._pool, queries.TAKE_CONTAINER, values)
        if not rows:
            raise ContainerGone
        await self._quotas.require(rows[0])
        if auto is not None and auto.file_ids:
            await fetch_when_available(
                self._pool, queries.LINK_FILES, link_values(project, container, auto.file_ids)
            )
        return rows[0]

    async def get(self, container: UUID) -> Container:
        rows = await fetch_when_available(self._pool, queries.GET_CONTAINER, {"id": container})
        if not rows:
            raise ContainerGone
        return rows[0]

    async def place(
        self, container: UUID, before: str | None, sandbox: str, session: str
    ) -> Container:
        values = {"id": container, "before": before, "sandbox": sandbox, "session": session}
        rows = await fetch_when_available(self._pool, queries.PLACE_CONTAINER, values)
        return rows[0] if rows else await self.get(container)

    async def missing_files(self, container: UUID, session: str) -> Sequence[ContainerFile]:
        values = {"container": container, "session": session}
        return await fetch_when_available(self._pool, queries.MISSING_FILES, values)

    async def mark_present(self, files: Sequence[UUID], session: str) -> None:
        await self._execute(queries.MARK_PRESENT, {"ids": Uuids(files), "session": session})

    async def content(self, file: ContainerFile) -> AsyncGenerator[bytes, None]:
        assert self._storage is not None
        parts = await fetch_when_available(self._pool, FILE_PARTS, {"id": file.file_id})
        async for chunk in read_content(self._storage, parts):
            yield chunk

    async def store_file(
        self,
        container: Container,
        path: str,
        content: Callable[[], AsyncIterator[bytes]],
        session: str,
    ) -> ContainerFile:
        try:
            new = await retry_while_unavailable(
                lambda: self._write(container, path, content(), session)
            )
            return await retry_while_unavailable(lambda: self._complete(container, new))
        except (StorageError, FileGone, TimeoutError) as error:
            raise FileRefused("it could not be stored.") from error

    async def _write(
        self, container: Container, path: str, content: AsyncIterator[bytes], session: str
    ) -> NewContent:
        assert self._storage is not None
        file, upload_time = new_uuid(), self._settings.files.upload_time
        values: dict[str, object] = {
            "id": file,
            "project": container.project_id,
            "filename": path.rpartition("/")[2],
            "purpose": FilePurpose.CONTAINER,
            "bytes": 0,
            "media_type": None,
            "lifetime": None,
            "upload_time": upload_time,
        }
        await fetch(self._pool, INSERT_FILE, values)
        limited = _limited(content, self._settings.code.file_bytes)
        try:
            part = await write_part(
                self._pool, self._storage, file, limited, number=0, upload_time=upload_time
            )
        except FileRefused:
            await fetch(self._pool, ABANDON_FILE, {"id": file})
            raise
        return NewContent(file, path, part.bytes, "assistant", session)

    async def _complete(self, container: Container, new: NewContent) -> ContainerFile:
        own = (await self._policies.policy(container.project_id)).quotas
        async with self._pool.connection() as connection, connection.transaction():
            exceeded = await exceeded_quota(
                connection, own, self._settings.quotas, container.project_id, new.file, new.bytes
            )
            stored = None if exceeded else await store_content(connection, container.id, new)
            if stored is None:
                await fetch(connection, ABANDON_FILE, {"id": new.file})
        if exceeded:
            raise FileRefused(f"the project may have at most {exceeded}.")
        if stored is None:
            raise FileRefused("its container was deleted.")
        return stored

    async def delete_file(self, container: UUID, path: str) -> None:
        values = {"container": container, "path": path}
        for file in await fetch_when_available(self._pool, queries.DELETE_PATH, values):
            await self._execute(queries.FORGET_CONTENT, {"file": file})

    async def begin_cell(self, cell: str, container: UUID, session: str) -> str:
        values = {"id": cell, "container": container, "session": session}
        for begun in await fetch_when_available(self._pool, queries.BEGIN_CELL, values):
            return begun
        raise ContainerGone

    async def end_cell(self, cell: str, result: Any) -> None:
        values = {"id": cell, "cpu_ms": result["cpu_ms"], "wall_ms": result["wall_ms"]}
        await self._execute(queries.END_CELL, values)

    async def find_cell(self, cell: str) -> tuple[str, str] | None:
        for place in await fetch_when_available(self._pool, queries.FIND_CELL, {"id": cell}):
            return place.sandbox, place.session
        return None

    async def _execute(self, statement: Any, values: dict[str, object]) -> None:
        await retry_while_unavailable(lambda: execute(self._pool, statement, values))


async def _limited(content: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    """The content. Raises FileRefused beyond `limit` bytes."""
    size = 0
    async for chunk in content:
        size += len(chunk)
        if size > limit:
            raise FileRefused(f"it has more than {limit} bytes.")
        yield chunk
