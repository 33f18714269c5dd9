"""What a GET of a response shows: the fold of its events so far (I7).

GETs that arrive while one statement is on its way are answered by the next one, all of them. So
what a GET shows is younger than the GET
(docs/architecture.md).

An output of more than 64 KiB is not read, or not kept, before the GET has its part of the process's
memory for large bodies (docs/limits.md). A large one is read alone, and projects take turns.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import orjson

from models.db.arrays import Bigints, Ints, Uuids
from models.db.database import Pool, fetch_idempotent
from models.db.queries.progress import PROJECT_OF
from models.db.queries.read import PAGE_LIMITS, SHOWN_RESPONSES, ShownResponseRow
from models.db.statement import Query
from models.files.response_images import ResponseImages
from models.lifecycle import TERMINAL, Status
from models.load.fair_queue import FairQueue
from models.load.pacing import pause_if_large
from models.ownership.grouping import GroupedRequests
from models.shown_responses import shown_object
from models.wire.events import Item
from models.wire.image_marks import may_have_marks
from models.wire.progress import Progress
from web.http.body import UNCOUNTED_BYTES, Hold
from web.http.json_responses import poll_after
from web.responses.progress import OpenResponse, ProgressReads, poll_seconds
from web.responses.running import KnownPart, RunningOutput, RunningOutputs

_MAX_READ = 32
"""GETs that one statement answers: each may return a page of the log, and a journal."""
_MAX_BYTES = _MAX_READ * UNCOUNTED_BYTES
"""Bytes of output that one statement for several GETs may return: they are decoded in one turn of
the event loop, and mostly folded and encoded in it."""
_LARGE_READS = 2
"""Larger outputs that are read at a time, of two projects."""


@dataclass(frozen=True, slots=True)
class _Get:
    """A GET of one response."""

    project: UUID
    id: UUID
    include: Collection[str]
    max_size: int
    """of the items that the statement may return (models/wire/json_input.py)"""
    is_watch: bool = False
    """Only the progress is wanted, not the Response object."""


@dataclass(frozen=True, slots=True)
class ShownResponse:
    """What a GET of a response shows."""

    body: bytes
    """the Response object as JSON"""
    headers: dict[str, str]
    """when to ask again, if the response has not ended"""


@dataclass(frozen=True, slots=True)
class Watched:
    """What an operator sees of a response's progress."""

    status: str
    progress: Progress | None
    """None: it has ended"""
    max_output_tokens: int | None
    """of its request"""
    age: float
    """seconds since it was created"""
    now: float
    """on the database's clock, in seconds since the epoch"""


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the statement has returned for a GET."""

    is_complete: bool = True
    """False: there is more to read"""
    body: bytes | None = None
    """the Response object as JSON, without its progress; None: the project may not see the
    response, or it is only watched"""
    size: int = 0
    """bytes of the body, or of the memory that the next read needs"""
    row: ShownResponseRow | None = None
    """of a response that is only watched"""
    found: OpenResponse | None = None
    """None: it has ended"""


_INCOMPLETE = _Shown(is_complete=False)
_NOT_FOUND = _Shown()


class ShownResponses:
    """Answers the GETs of one web process."""

    def __init__(
        self,
        pool: Pool,
        outputs: RunningOutputs | None = None,
        progress: ProgressReads | None = None,
        statement: Query[ShownResponseRow] = SHOWN_RESPONSES,
        images: ResponseImages | None = None,
    ) -> None:
        """`outputs`, `progress`: of the process, if another object shares them. `statement`: which
        responses are shown. `images`: puts stored images into them; None: this process has no
        storage."""
        self._pool = pool
        self._images = images or ResponseImages(pool, None)
        self._statement = statement
        self._progress = progress or ProgressReads(pool)
        self._outputs = outputs or RunningOutputs()
        self._reads = GroupedRequests(
            self._read,
            lambda get: get.max_size,
            max_requests=_MAX_READ,
            max_bytes=_MAX_BYTES,
            gap=0,
        )
        self._large_reads = FairQueue(_LARGE_READS)

    async def body(
        self,
        project: UUID,
        wanted_id: UUID,
        include: Collection[str] = (),
        *,
        hold: Hold,
    ) -> ShownResponse | None:
        """The response; None if the project may not see it. `include`: values of this request, in
        addition to those of the create. `hold`: makes what a large answer has of the process's
        memory. Raises ShareUsedUp or Unavailable."""
        shown = await self._complete(_Get(project, wanted_id, include, UNCOUNTED_BYTES), hold)
        if shown.body is None:
            return None
        if shown.found is None:
            return ShownResponse(await self._images.filled_body(project, shown.body), {})
        progress = await self._progress.of(shown.found)
        field = b',"progress":' + orjson.dumps(progress.to_json()) + b"}"
        seconds = poll_seconds(shown.found, progress.waits_for)
        return ShownResponse(shown.body[:-1] + field, poll_after(seconds))

    async def watch(self, wanted_id: UUID, *, hold: Hold) -> Watched | None:
        """The progress of a response, without its output; None: it is not shown. `hold`: as for
        `body`. Raises ShareUsedUp or Unavailable."""
        projects = await fetch_idempotent(self._pool, PROJECT_OF, {"id": wanted_id})
        if not projects:
            return None
        get = _Get(projects[0], wanted_id, (), UNCOUNTED_BYTES, is_watch=True)
        shown = await self._complete(get, hold)
        if shown.row is None:
            return None
        row, found = shown.row, shown.found
        progress = None if found is None else await self._progress.of(found)
        limit = row.parameters.get("max_output_tokens")
        age = row.open_figures.age
        return Watched(row.status, progress, limit, age, row.created_at + age)

    async def _complete(self, get: _Get, hold: Hold) -> _Shown:
        """All of the response, in as many reads as it takes."""
        shown, held, max_size = _INCOMPLETE, None, get.max_size
        while not shown.is_complete:
            shown = await self._read_one(replace(get, max_size=max_size))
            if shown.size > max_size:
                held = held or hold()
                # The object shows texts twice (`output_text`), and a running response grows.
                max_size = 2 * shown.size + UNCOUNTED_BYTES
                await held.grow(max_size)
        if held is not None and not may_have_marks(shown.body or b""):
            held.resize(min(held.amount, shown.size))
        return shown

    async def _read_one(self, get: _Get) -> _Shown:
        if get.max_size <= _MAX_BYTES:
            return await self._reads.submit(get)
        # Among the others, a few would keep all of them waiting.
        async with self._large_reads.permit(get.project):
            shown = (await self._read([get]))[0]
            await pause_if_large(shown.size)
            return shown

    async def _read(self, gets: list[_Get]) -> list[_Shown]:
        """Answers these GETs with one statement."""
        keys = list(dict.fromkeys((get.project, get.id) for get in gets))
        outputs = [self._outputs.find(wanted_id) for _, wanted_id in keys]
        known = [output.known for output in outputs]
        max_sizes = dict.fromkeys(keys, 0)
        for get in gets:
            max_sizes[get.project, get.id] = max(get.max_size, max_sizes[get.project, get.id])
        values = _values(keys, known, list(max_sizes.values()))
        rows = await fetch_idempotent(self._pool, self._statement, values)
        # A running response is folded at once: another statement may read it meanwhile.
        if len(keys) == 1 and rows and rows[0].status != Status.IN_PROGRESS:
            await pause_if_large(min(rows[0].items_size, max_sizes[keys[0]]))
        shown: dict[tuple[UUID, UUID], _ShownRow] = {}
        for row in rows:
            place = row.place - 1
            if row.items_size > max_sizes[keys[place]]:
                shown[keys[place]] = _ShownRow(row, None, row.items_size)
            else:
                project = keys[place][0]
                shown[keys[place]] = self._show(project, row, outputs[place], known[place])
        return [
            shown[get.project, get.id].encode(get) if (get.project, get.id) in shown else _NOT_FOUND
            for get in gets
        ]

    def _show(
        self, project: UUID, row: ShownResponseRow, output: RunningOutput, known: KnownPart
    ) -> "_ShownRow":
        if row.status != Status.IN_PROGRESS:
            self._outputs.forget(row.id)
            items = row.items or []
            found = None if row.status in TERMINAL else OpenResponse.of(project, row, items, None)
            return _ShownRow(row, items, row.items_size, found)
        # Another batch may have folded more in the meantime.
        is_complete = output.known is known and output.add(row)
        self._outputs.keep(row.id, output)
        if not is_complete:
            return _ShownRow(row, None, output.size)
        items = output.items()
        return _ShownRow(row, items, output.size, OpenResponse.of(project, row, items, output))


class _ShownRow:
    """A response as one statement has read it. Equal GETs share its JSON."""

    def __init__(
        self,
        row: ShownResponseRow,
        items: list[Item] | None,
        size: int,
        found: OpenResponse | None = None,
    ) -> None:
        """`items`: the output; None if there is more to read. `size`: bytes of memory of the
        output, about. `found`: None if it has ended, or there is more to read."""
        self._row = row
        self._items = items
        self._size = size
        self._found = found
        self._encoded: dict[frozenset[str], _Shown] = {}

    def encode(self, get: _Get) -> _Shown:
        if self._items is None or self._size > get.max_size:
            return _Shown(is_complete=False, size=self._size)
        if get.is_watch:
            return _Shown(row=self._row, found=self._found)
        key = frozenset(get.include)
        if key not in self._encoded:
            body = orjson.dumps(shown_object(self._row, self._items, get.include))
            self._encoded[key] = _Shown(body=body, size=len(body), found=self._found)
        return self._encoded[key]


def _values(
    keys: Sequence[tuple[UUID, UUID]], known: Sequence[KnownPart], max_sizes: Sequence[int]
) -> dict[str, object]:
    return {
        "projects": Uuids([project for project, _ in keys]),
        "ids": Uuids([wanted_id for _, wanted_id in keys]),
        "attempts": Ints([part.attempt for part in known]),
        "workers": Uuids([part.worker for part in known]),
        "checkpoints": Ints([part.checkpoint for part in known]),
        "numbers": Ints([part.number for part in known]),
        "batches": Bigints([part.batch for part in known]),
        "max_sizes": Bigints(max_sizes),
        **PAGE_LIMITS,
    }
