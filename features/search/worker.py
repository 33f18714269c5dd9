"""Makes the search documents of responses that have ended: a task of every worker.

What ends in this worker gets its document within a second or two. For the rest, such as cached
answers and the responses of a worker that was killed, there is the walk: one worker at a time goes
through all responses, from the newest to the oldest and then again, and makes what is missing. It
also deletes words that the settings or the policy of a project no longer permit.

All of it is outside the statements that end responses, and rests after each of its own for as long
as that took. If more responses end than it can follow, the walk makes their documents later.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

import psycopg
import structlog

from features.search.index import SearchIndex
from models.config.feature_groups import SearchSettings
from models.db.arrays import Uuids
from models.db.database import Pool, execute, fetch
from models.db.queries import search_documents
from models.due_work import repeat
from models.ended_line import EndedLine
from models.ids import response_id
from worker.run.resources import Resources, WorkerFeature

logger = structlog.get_logger()

_POLL: Final = 1.0
"""Seconds between two looks at what has ended here."""
_GROUP: Final = 50
"""Responses of one statement: it takes some hundredths of a second, and with the largest texts half
a second."""
_MAX_ENDED: Final = 5_000
"""Responses that are remembered here; older ones are left to the walk."""
_STEP: Final = timedelta(seconds=2)
"""Between two steps of the walk."""
_REST: Final = timedelta(seconds=15)
"""Before the next step of a walk that is at its end and has found nothing to do."""
_LEASE: Final = timedelta(seconds=20)
"""For a step; a worker that dies in it has left the next one to another worker then."""
_LAST = UUID(int=2**128 - 1)


class SearchDocuments:
    """The documents that this process makes."""

    def __init__(self, pool: Pool, settings: SearchSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._ended: deque[UUID] = deque(maxlen=_MAX_ENDED)
        self._walk_is_due = True

    def note_end(self, line: EndedLine) -> None:
        """A response has ended here."""
        self._ended.append(line.response)

    def note_due(self) -> None:
        """The next step of the walk is due."""
        self._walk_is_due = True

    async def run(self) -> None:
        """Works until it is cancelled."""
        await repeat("search_documents", self._work, _POLL)

    async def _work(self) -> None:
        ended = list(self._ended)
        self._ended.clear()
        for ids in _groups(ended):
            await self._add(ids)
        if self._walk_is_due:
            self._walk_is_due = False
            await self.walk()

    async def walk(self) -> None:
        """A step of the walk, if one is due and no other process takes it: the newest responses,
        and those before its position."""
        taken = await fetch(self._pool, search_documents.TAKE_STEP, {"pause": _LEASE})
        if not taken:
            return
        newest = await self._check(_LAST)
        step = await self._check(taken[0])
        is_idle = step.last is None and not (newest.changed or step.changed)
        values = {
            "position": step.last or _LAST,
            "completed": step.last is None,
            "pause": _REST if is_idle else _STEP,
        }
        await execute(self._pool, search_documents.END_STEP, values)

    async def _check(self, before: UUID) -> "_Checked":
        """Makes the documents of the newest responses before an id as they must be."""
        values = {"before": before, "texts": self._settings.text}
        [found] = await fetch(self._pool, search_documents.EXAMINE, values)
        if found.wrong:
            await execute(
                self._pool, search_documents.DELETE_DOCUMENTS, {"ids": Uuids(found.wrong)}
            )
        made = [*found.missing, *found.wrong]
        for ids in _groups(made):
            await self._add(ids)
        return _Checked(
            found.last if found.examined == search_documents.EXAMINED else None, len(made)
        )

    async def _add(self, ids: Sequence[UUID]) -> None:
        started = time.monotonic()
        values = {
            "ids": Uuids(ids),
            "texts": self._settings.text,
            "characters": self._settings.characters,
        }
        try:
            await fetch(self._pool, search_documents.ADD_DOCUMENTS, values)
        except psycopg.DataError as error:
            # A text that PostgreSQL cannot read: the others have documents nevertheless.
            if len(ids) > 1:
                for each in ids:
                    await self._add([each])
                return
            logger.warning(
                "search_document_not_made", response=response_id(ids[0]), error=str(error).strip()
            )
        await asyncio.sleep(time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class _Checked:
    """Some responses whose documents are as they must be."""

    last: UUID | None
    """the oldest of them; None: there are no older ones"""
    changed: int
    """documents that were made"""


def _groups(ids: Sequence[UUID]) -> list[Sequence[UUID]]:
    return [ids[first : first + _GROUP] for first in range(0, len(ids), _GROUP)]


class Search(WorkerFeature):
    """The documents of what ends in this worker, and its share of the walk."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self._documents = SearchDocuments(resources.pool, resources.settings.search)
        self._index = SearchIndex(resources.pool, resources.settings)

    def start(self) -> None:
        """Begins to make documents."""
        self.resources.on_ended.append(self._documents.note_end)
        self.resources.due_poll.add(search_documents.WALK_IS_DUE, self._documents.note_due)
        self.resources.side_tasks.start(self._documents.run(), "search-documents")
        self.resources.side_tasks.start(self._index.run(), "search-index")


FEATURE = Search
