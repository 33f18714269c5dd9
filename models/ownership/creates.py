"""Which creates of a web process have a known outcome.

A create is *unclear* if the connection to Postgres was lost before the answer came, and its client
got a 503. It is voided (web/responses/insert.py), and until then no sweep may claim it
(I9). So the heartbeat stores a time in `workers.settled_at`: each create that is dated before it
(`responses.enqueued_at`) has a known outcome. Both times are on the clock of the database.

The time is found without a look at this process's clock. A renewal returns the database's time `t`.
A create that is sent after that answer was received is dated `t` or later. So once all creates
that were sent before the answer have a known outcome, `t` may be stored, with the next renewal. A
create whose statement began before `t` and is committed after it was sent before the answer: as
long as its reply is awaited, or it is unclear, `t` is not stored.
"""

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class UnclearCreate:
    """A create that was answered with 503 and may have been stored."""

    response_id: UUID
    project: UUID
    number: int
    """of the create, from `CreateOutcomes.begin`"""


def void_values(unclear: Sequence[UnclearCreate], web: UUID) -> dict[str, object]:
    """The values of VOID_UNCLEAR_CREATES and DELETE_VOIDED_SECRETS for creates of this process."""
    return {
        "ids": [create.response_id for create in unclear],
        "projects": [create.project for create in unclear],
        "web": web,
    }


class CreateOutcomes:
    """The creates of one web process whose outcome is not known. The event loop and the thread of
    the heartbeat use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_number = 0
        self._sent: set[int] = set()
        """numbers of creates whose reply is awaited"""
        self._unclear: dict[UUID, UnclearCreate] = {}
        self._mark: tuple[datetime, int] | None = None
        """a time of the database, and the number of the first create sent after it was received"""
        self._settled_at: datetime | None = None

    def begin(self) -> int:
        """Records that a create is about to be sent, and returns its number."""
        with self._lock:
            number = self._next_number
            self._next_number += 1
            self._sent.add(number)
            return number

    def end(self, number: int) -> None:
        """Records that no reply of the create is awaited any more. Its outcome is known, unless
        `add_unclear` was called before."""
        with self._lock:
            self._sent.discard(number)

    def add_unclear(self, create: UnclearCreate) -> None:
        """Records a create that is to be voided."""
        with self._lock:
            self._unclear[create.response_id] = create

    def unclear(self, limit: int | None = None) -> list[UnclearCreate]:
        """Up to `limit` creates that are to be voided, oldest first."""
        with self._lock:
            return list(self._unclear.values())[:limit]

    def remove_unclear(self, response_ids: Collection[UUID]) -> None:
        """Records that these creates will never run."""
        with self._lock:
            for response_id in response_ids:
                self._unclear.pop(response_id, None)

    def renewed(self, database_time: datetime) -> None:
        """Records the time that a renewal of the lease returned."""
        with self._lock:
            self._settle()
            if self._mark is None:
                self._mark = database_time, self._next_number

    def settled_at(self) -> datetime | None:
        """The time of the database before which no create has an unknown outcome; None if that is
        not known yet. It never goes back."""
        with self._lock:
            self._settle()
            return self._settled_at

    def _settle(self) -> None:
        if self._mark is None:
            return
        database_time, first_after = self._mark
        oldest = min(
            [*self._sent, *(create.number for create in self._unclear.values())],
            default=first_after,
        )
        if oldest >= first_after:
            self._settled_at, self._mark = database_time, None
