"""Claims of responses that need no recovery: new ones, and those that were released."""

from collections.abc import Callable, Mapping
from uuid import UUID

import psycopg
import structlog

from models.db.arrays import Uuids
from models.db.database import Pool, fetch, is_refusal
from models.db.queries.claim import CLAIM_UNOWNED, CLAIM_UNOWNED_TOGETHER, ClaimedRow
from models.ownership.grouping import GroupedRequests
from models.ownership.takeover import Claim

logger = structlog.get_logger()


class UnownedClaims:
    """The claims of one worker. Those that are requested while a statement is on its way are made
    together by the next one. A request that comes alone has the statement for one response, which
    takes a third less of Postgres."""

    def __init__(self, pool: Pool, claim_values: Callable[[], Mapping[str, object]]) -> None:
        """`claim_values`: `me`, `wall_clock` and `first_attempt` of the statements."""
        self._pool = pool
        self._claim_values = claim_values
        self._requests = GroupedRequests(self._take_group)

    async def take(self, response_id: UUID) -> Claim | None:
        """Claims the response. None: it has an owner, its workers have crashed, it may not run now,
        or it is deleted. Raises what DATABASE_UNAVAILABLE names: the claim may then have been
        made."""
        claim, is_known = await self._requests.submit(response_id)
        # Another transaction may have locked the row, which a group does not wait for.
        return claim if is_known else await self._take_alone(response_id)

    async def _take_group(self, ids: list[UUID]) -> list[tuple[Claim | None, bool]]:
        """The claims, and whether it is known of each response if it can be claimed."""
        if len(ids) == 1:
            return [(await self._take_alone(ids[0]), True)]
        return [(claim, claim is not None) for claim in await self._take_together(ids)]

    async def _take_alone(self, response_id: UUID) -> Claim | None:
        """The statement for one response. Waits until no other transaction has locked it."""
        values = {**self._claim_values(), "id": response_id}
        rows = await fetch(self._pool, CLAIM_UNOWNED, values)
        return claim_of(rows[0]) if rows else None

    async def _take_together(self, ids: list[UUID]) -> list[Claim | None]:
        """One statement. None also for a response that is locked, and for all if Postgres refuses
        the statement: one of them may be the cause."""
        values = {**self._claim_values(), "ids": Uuids(ids)}
        try:
            rows = await fetch(self._pool, CLAIM_UNOWNED_TOGETHER, values)
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            logger.warning("claims_refused", responses=len(ids), error=str(error).strip())
            return [None] * len(ids)
        claims = {row.id: claim_of(row) for row in rows}
        # Of two requests for the same response only one has claimed it.
        return [claims.pop(response_id, None) for response_id in ids]


def claim_of(row: ClaimedRow) -> Claim:
    """The claim of a response that no owner had lost: its event log is complete."""
    if row.attempt == 1:
        return Claim(row, log_end=1 if row.background else 0, is_first=True)
    return Claim(row, log_end=-1, has_unread_log=True)
