"""The event logs of claimed responses, as far as their new owner needs them."""

from dataclasses import replace

import psycopg
import structlog

from models.db.database import Pool, fetch
from models.db.queries import claim as claim_queries
from models.db.queries.common import LogBlock
from models.ownership.grouping import GroupedRequests
from models.ownership.takeover import Claim, read_log_ends, read_logs

logger = structlog.get_logger()


class ClaimedLogs:
    """Reads the logs of claims since their last checkpoints, after the claims are committed: if the
    size of a log crashes this process, that is counted."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._requests = GroupedRequests(self.read_all)

    async def read_with_others(self, claim: Claim) -> Claim:
        """The claim with its log; unchanged if the logs that are requested at this time cannot be
        read together: one of them may be too large."""
        return await self._requests.submit(claim)

    async def read(self, claim: Claim) -> Claim:
        """The claim with its log. Raises what DATABASE_UNAVAILABLE names."""
        async with self._pool.connection() as connection:
            since = {"id": claim.id, "after": claim.row.checkpoint_number}
            blocks = await fetch(connection, claim_queries.LOG_SINCE, since)
            if blocks or claim.log_end >= 0:
                return _with_blocks(claim, blocks)
            log_ends = await read_log_ends(connection, [claim.id])
            return replace(_with_blocks(claim, []), log_end=log_ends[claim.id])

    async def read_all(self, claims: list[Claim]) -> list[Claim]:
        """These claims with their logs, as far as they are not read yet; unchanged if Postgres
        refuses to read them together."""
        unread = [claim for claim in claims if claim.has_unread_log]
        if not unread:
            return claims
        try:
            async with self._pool.connection() as connection:
                logs = await read_logs(connection, [claim.row for claim in unread])
                empty = [claim.id for claim in unread if not logs[claim.id] and claim.log_end < 0]
                ends = await read_log_ends(connection, empty) if empty else {}
        except psycopg.Error as error:
            logger.warning("logs_not_read", responses=len(unread), error=str(error).strip())
            return claims
        return [
            _with_blocks(replace(claim, log_end=ends.get(claim.id, claim.log_end)), logs[claim.id])
            if claim.has_unread_log
            else claim
            for claim in claims
        ]


def _with_blocks(claim: Claim, blocks: list[LogBlock]) -> Claim:
    """The claim with its log since the last checkpoint."""
    published = [block for block in blocks if block.attempt > 0]
    return replace(
        claim,
        blocks=published,
        log_end=blocks[-1].last if blocks else claim.log_end,
        is_first=not published
        and claim.row.checkpoint_number < 0
        and claim.end_reason is None
        and not claim.crashes.since_checkpoint,
        has_unread_log=False,
    )
