"""What has happened to a response, as commands and the console show it."""

from dataclasses import dataclass
from uuid import UUID

from features.operator.diagnosis import diagnose
from features.operator.facts import AttemptFacts
from features.operator.timeline import TimelineEvent, timeline
from models.db.database import Connection, Pool, fetch_idempotent, find_by_id
from models.db.queries import operations
from models.db.queries.leases import LIVE_WORKERS
from models.db.queries.line import PLACE_OF, PlaceInLine
from models.db.queries.operations import ResponseState


@dataclass(frozen=True, slots=True)
class History:
    """A response now, and what happened before."""

    state: ResponseState
    live: dict[str, int]
    """live processes by kind"""
    place: PlaceInLine | None
    """where it waits for a slot"""
    attempts: list[AttemptFacts]
    timeline: list[TimelineEvent]
    journalled: int | None
    """the last event that was published and not yet flushed"""

    @property
    def why(self) -> str:
        """What it does or waits for."""
        return diagnose(self.state, self.live, self.place).why


async def read_history(on: Pool | Connection, response: UUID) -> History | None:
    """None: there is no such response."""
    state = await find_by_id(on, operations.STATE, response)
    if state is None:
        return None
    values = {"id": response}
    attempts = await fetch_idempotent(on, operations.ATTEMPTS, values)
    stored = await fetch_idempotent(on, operations.LOG_SUMMARY, values)
    places = await fetch_idempotent(on, PLACE_OF, values)
    journalled = await fetch_idempotent(on, operations.LAST_JOURNALLED, values)
    blocks = {block.attempt: block for block in stored}
    return History(
        state,
        await live_counts(on),
        places[0] if places else None,
        [AttemptFacts.from_rows(row, blocks.get(row.attempt)) for row in attempts],
        timeline(state, attempts, stored),
        journalled[0].last if journalled else None,
    )


async def live_counts(on: Pool | Connection) -> dict[str, int]:
    """How many live processes there are of each kind."""
    return {row.kind: row.live for row in await fetch_idempotent(on, LIVE_WORKERS, {})}
