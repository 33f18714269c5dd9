"""Claims in line: which of the waiting responses a worker runs next (ADR 0041)."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import psycopg
import structlog

from models.config.groups import LineSettings
from models.db.arrays import Booleans, Ints, Uuids
from models.db.database import Pool, execute, fetch, is_refusal
from models.db.queries.claim import CLAIM_UNOWNED, ClaimedRow
from models.db.queries.line import CLAIM_NEXT, CONFIRM, LEAD_FOLLOW_UPS, NEXT_IN_LINE
from models.ids import response_id as public_id
from models.ids import unix_seconds
from models.ownership.takeover import Claim, claim_of

logger = structlog.get_logger()

_CONFIRMED_BY_THEN = 30.0
"""Seconds after which a create has a known outcome without its wake-up, on the clocks of two
machines: its web process has renewed its lease, or is dead."""


@dataclass(frozen=True, slots=True)
class ProjectShare:
    """What a worker knows of a project."""

    running: int
    """responses of it that run there"""
    ahead: float
    """how much more than others it was served lately, in responses divided by its weight"""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a worker wants of the line."""

    max_rows: int
    kinds: Sequence[bool]
    """of background responses, of foreground ones, or both"""
    slots: int
    """of the worker, free or not"""
    shares: Mapping[UUID, ProjectShare]
    ids: Collection[UUID] = ()
    """responses whose wake-ups were read just now"""
    waiting: timedelta = timedelta(0)
    """for how long they must have waited"""
    only_newcomers: bool = False
    """only of projects that have nothing running here, one of each"""


@dataclass(frozen=True, slots=True)
class ChosenClaim:
    """A claim, and the weight of its project."""

    claim: Claim
    weight: int


class LineClaims:
    """Claims of one worker in line."""

    def __init__(
        self,
        pool: Pool,
        claim_values: Callable[[], Mapping[str, object]],
        line: LineSettings,
    ) -> None:
        """`claim_values`: `me`, `wall_clock` and `first_attempt` of the statement."""
        self._pool = pool
        self._claim_values = claim_values
        self._flex_wait = line.flex_wait
        self._lead = line.continuation_lead
        self._cursor = UUID(int=0)

    async def take(self, choice: ClaimRequest) -> list[ChosenClaim]:
        """Claims what is next in line. Raises what DATABASE_UNAVAILABLE names: the claims may then
        have been made."""
        shares = choice.shares
        values = {
            **self._claim_values(),
            "flex_wait": self._flex_wait,
            "max_rows": choice.max_rows,
            "kinds": Booleans(choice.kinds),
            "slots": float(choice.slots),
            "ids": Uuids(_new_ids(choice.ids)),
            "waiting": choice.waiting,
            "only_newcomers": choice.only_newcomers,
            "cursor": self._cursor,
            "projects": Uuids(list(shares)),
            "running": Ints([share.running for share in shares.values()]),
            "ahead": [share.ahead for share in shares.values()],
        }
        try:
            rows = await fetch(self._pool, CLAIM_NEXT, values)
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            logger.warning("choice_refused", error=str(error).strip())
            return await self._take_each(values, choice.max_rows)
        if rows:
            self._cursor = rows[-1].project_id
        return [ChosenClaim(claim_of(row), row.weight) for row in rows]

    async def _take_each(self, values: Mapping[str, object], max_rows: int) -> list[ChosenClaim]:
        """Claims what is next in line with a statement for each response: one of them may be the
        cause why Postgres has refused the statement for all. That one is left out."""
        chosen: list[ChosenClaim] = []
        for candidate in await fetch(self._pool, NEXT_IN_LINE, values):
            if len(chosen) == max_rows:
                break
            try:
                rows = await fetch(self._pool, CLAIM_UNOWNED, {**values, "id": candidate.id})
            except psycopg.Error as error:
                if not is_refusal(error):
                    raise
                logger.warning(
                    "claim_refused", response=public_id(candidate.id), error=str(error).strip()
                )
            else:
                chosen += [ChosenClaim(claim_of(row), candidate.weight) for row in rows]
        return chosen

    async def confirm(self, ids: Collection[UUID]) -> None:
        """Records that wake-ups of these responses were read. Raises what DATABASE_UNAVAILABLE
        names; then other workers see the new ones among them some seconds later."""
        if new_ids := _new_ids(ids):
            await execute(self._pool, CONFIRM, {"ids": Uuids(new_ids)})

    async def lead_follow_ups(self, row: ClaimedRow) -> None:
        """Moves forward in line what has the `continuation_id` of this claimed response. Without an
        answer of Postgres they keep their places."""
        continuation = row.parameters.get("background_options", {}).get("continuation_id")
        if continuation is None or not self._lead:
            return
        values = {"project": row.project_id, "continuation": continuation, "lead": self._lead}
        try:
            await execute(self._pool, LEAD_FOLLOW_UPS, values)
        except psycopg.Error as error:
            logger.warning("follow_ups_not_led", error=str(error).strip())


def _new_ids(ids: Collection[UUID]) -> list[UUID]:
    """Those of the responses that were made in the last seconds."""
    oldest = time.time() - _CONFIRMED_BY_THEN
    return [response_id for response_id in ids if unix_seconds(response_id) > oldest]
