"""Sessions that are over: their container was deleted, has expired, or lost them to another one, or
an operator has stopped them. Only workers reach sandboxes, so what ends them is a row."""

from collections.abc import Sequence
from datetime import timedelta

from features.code.session_queries import (
    SESSION_ENDED,
    SESSION_IS_OVER,
    TAKE_OVER_SESSIONS,
    OverSession,
)
from features.code.tool.client import (
    Place,
    Sandboxes,
    SandboxFull,
    SandboxUnavailable,
    SessionLost,
)
from models.db.database import Pool, execute
from models.due_work import DuePoll, DueWork, KindOfWork
from models.fence import FENCE, RowLease
from models.ids import CONTAINER, admin_id

_AT_ONCE = 16
_LEASE = timedelta(seconds=30)
"""A sandbox that does not answer is asked again after it."""
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
