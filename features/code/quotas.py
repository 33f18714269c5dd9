"""What code of a project may use at a time and on one day (docs/limits.md, "Per project")."""

import asyncio
import time

from features.code import session_queries
from features.code.containers import Container, ContainerRefused
from features.files.queries import LOCK_PROJECT
from models.config.groups import QuotaSettings
from models.db.database import Pool, execute, fetch, fetch_when_available, retry_while_unavailable
from models.db.queries.quotas import CODE_USE, USED_CPU
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
        [has] = await fetch_when_available(self._pool, session_queries.HAS_OPEN_CELL, values)
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
                    await execute(connection, session_queries.RESERVE_SESSION, values)
                    return True
                if not await fetch(connection, session_queries.STOP_IDLE, values):
                    return False


def _limit(name: str, own: QuotaSettings, common: QuotaSettings) -> int:
    """0: there is none."""
    limit = getattr(own, name)
    return (getattr(common, name) if limit is None else limit) or 0
