"""Counts refused requests for the audit log: those without a valid API key, and those to the admin
API whose key lacks the scope. One entry for all equal ones of a minute, and not one for each
request, which would let clients fill the disk."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import orjson

from models.db.database import DATABASE_UNAVAILABLE, Pool, execute
from models.db.queries.audit import RECORD_REFUSED, Actor, ActorKind
from models.ids import new_uuid

_MINUTE = 60.0
"""Seconds."""
_MAX_COUNTED = 1_000
"""Different requests of an action that one minute counts apart. The others count as one."""
_OTHERS = "others"


@dataclass(frozen=True, slots=True)
class _Refused:
    """What requests that count as one have in common."""

    actor: Actor
    """without a request id"""
    object: str | None = None


class RefusedRequests:
    """The counts of one web process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._counts: dict[str, Counter[_Refused]] = {}
        """By their action."""
        self._first_at = datetime.now(UTC)

    def add_unauthenticated(self, address: str) -> None:
        """A request from this address had no valid key."""
        others = _Refused(Actor(ActorKind.UNKNOWN, address=_OTHERS))
        refused = _Refused(Actor(ActorKind.UNKNOWN, address=address))
        self._add("authentication.fail", refused, others)

    def add_unauthorized(self, actor: Actor, target: str) -> None:
        """A request to the admin API, whose key lacks the scope. `target`: the method and the
        template of the path."""
        refused = _Refused(replace(actor, request_id=None), target)
        self._add("admin.refuse", refused, _Refused(Actor(ActorKind.KEY), _OTHERS))

    def _add(self, action: str, refused: _Refused, others: _Refused) -> None:
        if not self._counts:
            self._first_at = datetime.now(UTC)
        counts = self._counts.setdefault(action, Counter())
        is_new = refused not in counts
        counts[others if is_new and len(counts) >= _MAX_COUNTED else refused] += 1

    async def run(self) -> None:
        """Stores the counts at the end of each minute. Never returns.

        While Postgres is unavailable they are kept, and go on.
        """
        while True:
            await asyncio.sleep(_MINUTE - time.time() % _MINUTE)
            with suppress(*DATABASE_UNAVAILABLE):
                await self.store()

    async def store(self) -> None:
        """Stores the counts of this minute. Raises what `execute` raises; then they are kept."""
        if not self._counts:
            return
        counts, at = self._counts, self._first_at
        self._counts = {}
        try:
            values = orjson.dumps(list(_entries(counts, at))).decode()
            await execute(self._pool, RECORD_REFUSED, {"counts": values})
        except BaseException:
            for action, kept in counts.items():
                self._counts.setdefault(action, Counter()).update(kept)
            self._first_at = at
            raise


def _entries(counts: dict[str, Counter[_Refused]], at: datetime) -> Iterator[dict[str, object]]:
    """The entries as JSON."""
    for action, counted in counts.items():
        for refused, count in counted.items():
            actor = refused.actor
            yield {
                "id": new_uuid(),
                "at": at,
                "actor": actor.kind.value,
                "key_id": actor.key_id,
                "key_prefix": actor.key_prefix,
                "project": actor.project,
                "address": actor.address,
                "action": action,
                "object": refused.object,
                "count": count,
            }
