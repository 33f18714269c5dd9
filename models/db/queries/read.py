"""Responses and their logs, as clients read them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final
from uuid import UUID

from models.db.queries.common import (
    ENDED,
    OPEN,
    LogBlock,
    array,
    item_pages,
    journal_of,
    visible_outside,
)
from models.db.statement import Query, column
from models.lifecycle import IN_LINE, PLACE_IN_LINE, Lane


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """A response as its row describes it. Times in whole seconds since the epoch."""

    id: UUID
    status: str
    model: str
    parameters: dict[str, Any]
    background: bool
    store: bool
    previous_response_id: UUID | None
    conversation_id: UUID | None
    usage: dict[str, Any] | None
    error: dict[str, Any] | None
    """{code, message}"""
    reason: str | None
    """why it is incomplete, or a finer code of ours for a failure"""
    service_tier: str | None
    upstream_fields: dict[str, Any] | None
    """of a native upstream's Response object, which this server does not make itself"""
    failure: dict[str, Any] | None
    """{status, type, code, param, retry_after} for a foreground client that got no output"""
    attempt: int
    cache_key: bytes | None
    cache_ttl: int | None
    created_at: int
    completed_at: int | None
    retried_by: UUID | None
    """the last response that runs it again"""


@dataclass(frozen=True, slots=True)
class FoundResponse:
    """What must be known of a response to delete it, or to read its stream or its input. A
    ResponseRow has its parameters too, which may take a hundred times as much memory as they have
    bytes."""

    id: UUID
    status: str
    background: bool
    cache_key: bytes | None


RESPONSE_COLUMNS = """
           r.id, r.status, r.model, r.parameters, r.background, r.store, r.previous_response_id, r.conversation_id,
           r.usage, r.error, r.reason,
           r.service_tier, r.upstream_fields, r.failure, r.attempt, r.cache_key, r.cache_ttl,
           extract(epoch FROM r.created_at)::bigint AS created_at,
           floor(extract(epoch FROM r.completed_at))::bigint AS completed_at, r.retried_by"""
_SELECT_RESPONSE = f"SELECT {RESPONSE_COLUMNS} FROM responses r WHERE r.id = :id"


def _response_names(table: str) -> str:
    """The columns of a ResponseRow that `table` has under their names."""
    return ", ".join(f"{table}.{name.name}" for name in fields(ResponseRow))


def _is_visible(project: str) -> str:
    """Whether a GET of `project` shows response `r` (I11)."""
    return f"""r.project_id = {project} AND r.delete_requested_at IS NULL AND {visible_outside("r")}
      AND (r.background AND r.lane <> {Lane.BATCH.value} OR r.store)
           AND (r.store OR r.status IN {OPEN} OR r.expires_at > clock_timestamp())"""


RESPONSE = Query(_SELECT_RESPONSE, ResponseRow)
"""Selects a response by id, whatever its project. No row: it was deleted."""
UNDELETED_RESPONSE = column(
    "SELECT id FROM responses WHERE id = :id AND delete_requested_at IS NULL", UUID
)
"""Selects a response unless it is deleted, or is to be deleted."""
VISIBLE_RESPONSE = Query(f"{_SELECT_RESPONSE} AND {_is_visible(':project')}", ResponseRow)
FOUND_RESPONSE = Query(
    f"SELECT r.id, r.status, r.background, r.cache_key FROM responses r WHERE r.id = :id AND {_is_visible(':project')}",
    FoundResponse,
)
"""Both select a response that the project may see. No row: it belongs to another project, is deleted,
is a foreground response that has not ended, or was not to be stored and its time is over (I11). One
of a batch that was not to be stored is only seen in the output file."""

INPUT_ITEMS = item_pages("{item}.response_id = :id AND {item}.direction = 'input'", "position")
"""Pages of a response's own input."""
OUTPUT_PAGE = item_pages("{item}.response_id = :id AND {item}.direction = 'output'", "position")
"""Pages of a response's output, as far as it is stored."""
ANY_SIZE: Final = 2**62
"""As `max_size`: no limit."""


@dataclass(frozen=True, slots=True)
class OutputItem:
    """An output item that is stored."""

    item: dict[str, Any] | None
    """None: there are no items, or all together are too large"""
    total: int
    """the size of all items together (models/wire/json_input.py)"""


OUTPUT_ITEMS = Query(
    """
    SELECT CASE WHEN output.total <= CAST(:max_size AS bigint) THEN output.payload END AS item,
           coalesce(output.total, 0)::bigint AS total
    FROM (SELECT i.payload, i.position, sum(i.size) OVER () AS total
          FROM responses r LEFT JOIN items i ON i.response_id = r.id AND i.direction = 'output'
          WHERE r.id = :id AND r.delete_requested_at IS NULL) output
    ORDER BY output.position
    """,
    OutputItem,
)
"""Selects the output items that are stored: all of a response that has ended, else those of
finished turns. If all together are larger than `max_size`, their size without them. One row
without an item and with the total 0: there are no items. No row: the response is deleted."""


@dataclass(frozen=True, slots=True)
class LogPageRow:
    """One block of a page of a log, and the state of the response in the same snapshot."""

    status: str
    is_rewritten: bool
    """a later attempt has written other events under numbers that the reader has sent already"""
    is_journalled: bool
    """the block comes from the owner's journal, not from the event log"""
    block: LogBlock | None
    """None: there is nothing after the number, or it is larger than the page may be"""
    size: int
    """bytes of the block, also of one that is too large"""

    @classmethod
    def from_row(
        cls,
        status: str,
        is_rewritten: bool,
        is_journalled: bool | None,
        attempt: int | None,
        first: int | None,
        last: int | None,
        frames: bytes | None,
        size: int | None,
    ) -> "LogPageRow":
        """A row of LOG_PAGE; the last six columns are null together, but for a block that is too
        large."""
        block = _block(attempt, first, last, frames)
        return cls(status, is_rewritten, bool(is_journalled), block, size or 0)


def _block(
    attempt: int | None, first: int | None, last: int | None, frames: bytes | None
) -> LogBlock | None:
    if attempt is None or first is None or last is None or frames is None:
        return None
    return LogBlock(attempt, first, last, frames)


PAGE_LIMITS: Final = {"page": 1000, "bytes": 256 * 1024}
"""Blocks of a page of the event log, and bytes after which it ends: both bound memory (I12)."""


def is_page_full(blocks: Sequence[LogBlock]) -> bool:
    """Whether the event log may have more blocks behind these ones of a page."""
    size = sum(len(block.frames) for block in blocks)
    return len(blocks) == PAGE_LIMITS["page"] or size >= PAGE_LIMITS["bytes"]


def _log_page(response: str, number: str) -> str:
    """A page of a response's event log: rows with events beyond `number`, the first of them maybe
    with earlier ones too. At most `:page` rows, and none after those that fill `:bytes`.

    It begins at the last row that starts at `number` + 1 or before, which is one look into the
    index: the number of rows before it does not matter."""
    return f"""(
        SELECT page.attempt, page.first_number AS first, page.last_number AS last, page.frames
        FROM (SELECT e.*, sum(octet_length(e.frames)) OVER (ORDER BY e.first_number) - octet_length(e.frames) AS before
              FROM (SELECT * FROM event_log WHERE response_id = {response} AND last_number > {number}
                    AND first_number >= coalesce((
                        SELECT s.first_number FROM event_log s WHERE s.response_id = {response}
                          AND s.first_number <= CAST({number} AS bigint) + 1
                        ORDER BY s.first_number DESC LIMIT 1), 0)
                    ORDER BY first_number LIMIT :page) e) page
        WHERE page.before < CAST(:bytes AS bigint)
    )"""


LOG_PAGE = Query(
    f"""
    WITH response AS MATERIALIZED (
        SELECT r.id, r.status, r.worker, CAST(:attempt AS int) > 0 AND r.attempt <> :attempt AND ((
                   SELECT e.attempt FROM event_log e WHERE e.response_id = r.id AND e.first_number <= :after
                   ORDER BY e.first_number DESC LIMIT 1
               ) > :attempt OR EXISTS (
                   SELECT 1 FROM workers w {journal_of("r.id")}
                   WHERE w.id = r.worker AND p.n IS NOT NULL AND j.attempts[p.n] > :attempt
                     AND j.first_numbers[p.n] <= :after
               )) AS is_rewritten
        FROM responses r WHERE r.id = :id AND NOT (r.delete_requested_at IS NOT NULL AND r.status IN {ENDED}
          AND NOT EXISTS (SELECT 1 FROM event_log e WHERE e.response_id = r.id AND e.first_number = 0))
    ),
    blocks AS (
        SELECT false AS is_journalled, page.attempt, page.first, page.last,
               CASE WHEN octet_length(page.frames) <= CAST(:bytes AS bigint) THEN page.frames END AS frames,
               octet_length(page.frames) AS size
        FROM {_log_page(":id", ":after")} page
        UNION ALL
        SELECT true, j.attempts[p.n], j.first_numbers[p.n], j.last_numbers[p.n], j.frames[p.n],
               octet_length(j.frames[p.n])
        FROM response JOIN workers w ON w.id = response.worker {journal_of("response.id")}
        WHERE p.n IS NOT NULL AND j.last_numbers[p.n] > :after
    )
    SELECT response.status, response.is_rewritten, blocks.is_journalled, blocks.attempt, blocks.first, blocks.last,
           blocks.frames, blocks.size
    FROM response LEFT JOIN blocks ON true ORDER BY blocks.is_journalled, blocks.first, blocks.last
    """,
    LogPageRow.from_row,
)
"""Selects a page of a response's log beyond the number `after`, all in one snapshot (I7): its
state, the blocks of the event log, then those of its owner's journal. No row: the response was
deleted, or the purge deletes its log now, from the beginning. Of a block of the log that is larger
than `bytes` only the size is read: one event may have 32 MiB.

`attempt`: whose events the reader has sent last, 0 for none. The rows of a log are in the order of their attempts,
so one row shows whether a later attempt has rewritten events up to `after`."""


MOVED_LOGS = column(
    f"""
    SELECT t.nr::int AS nr
    FROM unnest({array("ids", "uuid")}, {array("numbers", "int")}, {array("attempts", "int")}) WITH ORDINALITY
        AS t (id, number, attempt, nr)
    LEFT JOIN LATERAL (SELECT r.status FROM responses r WHERE r.id = t.id OFFSET 0) r ON true
    LEFT JOIN LATERAL (
        SELECT e.last_number, e.attempt FROM event_log e WHERE e.response_id = t.id ORDER BY e.first_number DESC LIMIT 1
    ) e ON true
    WHERE r.status IS NULL OR r.status IN {ENDED} OR e.last_number > t.number OR t.attempt BETWEEN 1 AND e.attempt - 1
    """,
    int,
)
"""For readers that have sent the events up to `numbers` of the responses `ids`, the last one of
`attempts`: selects the places in these lists, from 1 on, of those that must read their log. It has
more events, or others by a later attempt; or the response has ended, or was deleted. The journal is
not looked at: what is in it is in the event log about a second later."""


@dataclass(frozen=True, slots=True)
class OpenFigures:
    """How far an open response is, by its row. In seconds."""

    age: float
    """since it was created"""
    pause: float | None
    """until it may run again; null or below 0: it is not deferred"""
    run_seconds: float | None
    """since it was claimed for the first time; null: it was not"""
    place_at: float | None
    """the time of its place in line, since the epoch; null: it is not in line"""
    turns: int
    """that have ended and that another one followed"""
    lane: int
    retrying_since: float | None
    """its upstream's first failure, since the epoch; null: it is not `retrying`"""
    failed_tries: int
    """since then"""


@dataclass(frozen=True, slots=True)
class ShownResponseRow(ResponseRow):
    """A response, and what a caller lacks of its output."""

    place: int
    """of the response in the lists that the caller sent, from 1 on"""
    worker: UUID | None
    """the owner; null while it has none"""
    checkpoint_number: int
    """the log up to this number belongs to finished turns"""
    is_continued: bool
    """the blocks continue what the caller has; else they begin at the checkpoint"""
    last_batch: int | None
    """the newest batch of the owner's journal; null: the journal is empty"""
    are_journalled: list[bool] | None
    """for each block, whether it comes from the owner's journal and not from the event log; the
    five lists are null together if there are no blocks"""
    block_attempts: list[int] | None
    firsts: list[int] | None
    lasts: list[int] | None
    frames: list[bytes] | None
    items: list[dict[str, Any]] | None
    """the output items that are stored; null if there are none, the caller has them, or all together
    are larger than the caller can take"""
    items_size: int
    """of the output items that the caller lacks (models/wire/json_input.py)"""
    figures: list[Any]
    """of OpenFigures, in their order: columns of their own would make each GET a tenth slower"""

    @property
    def open_figures(self) -> OpenFigures:
        """How far it is, if it has not ended."""
        age, pause, run_seconds, place_at, turns, lane, since, tries = self.figures
        return OpenFigures(
            age, pause, run_seconds, place_at, int(turns), int(lane), since, int(tries)
        )

    def blocks(self, *, journalled: bool) -> list[LogBlock]:
        """The blocks of the event log, or those of the journal."""
        lists = self.are_journalled, self.block_attempts, self.firsts, self.lasts, self.frames
        return [
            LogBlock(*block)
            for is_journalled, *block in zip(*(part or () for part in lists), strict=True)
            if is_journalled is journalled
        ]


def _shown_responses(is_shown: str) -> Query[ShownResponseRow]:
    """`is_shown`: whether a caller may see the response `r` as one of `a`."""
    return Query(
        f"""
    WITH requested AS MATERIALIZED (
        SELECT * FROM unnest({array("ids", "uuid")}, {array("projects", "uuid")}, {array("attempts", "int")},
                             {array("workers", "uuid")},
                             {array("checkpoints", "int")}, {array("numbers", "int")}, {array("batches", "bigint")},
                             {array("max_sizes", "bigint")})
             WITH ORDINALITY AS a (id, project, known_attempt, known_worker, checkpoint, known_number, known_batch,
                                   max_size, place)
    ),
    response AS MATERIALIZED (
        SELECT known.*, CASE WHEN known.is_continued THEN known.known_number ELSE known.checkpoint_number END AS number,
               CASE WHEN known.is_continued THEN known.known_batch ELSE 0 END AS batch
        FROM (SELECT a.place::int AS place, {RESPONSE_COLUMNS}, r.worker, r.checkpoint_number, a.known_number,
                     a.known_batch, a.max_size,
                     ARRAY[extract(epoch FROM clock_timestamp() - r.created_at)::float8,
                           extract(epoch FROM r.resume_at - clock_timestamp())::float8,
                           extract(epoch FROM clock_timestamp() - r.started_at)::float8,
                           CASE WHEN {IN_LINE} THEN extract(epoch FROM {PLACE_IN_LINE})::float8 END,
                           r.turns, r.lane, extract(epoch FROM r.retrying_since)::float8, r.failed_tries] AS figures,
                     r.status = 'in_progress' AND r.attempt = a.known_attempt
                     AND r.worker IS NOT DISTINCT FROM a.known_worker
                     AND r.checkpoint_number = a.checkpoint AS is_continued
              FROM requested a JOIN responses r ON r.id = a.id WHERE {is_shown}) known
    )
    SELECT {_response_names("response")}, response.place, response.worker, response.checkpoint_number,
           response.is_continued,
           (SELECT max(j.batch) FROM journal j WHERE j.worker = response.worker) AS last_batch,
           blocks.are_journalled, blocks.block_attempts, blocks.firsts, blocks.lasts, blocks.frames, items.items,
           stored.size AS items_size, response.figures
    FROM response
    CROSS JOIN LATERAL (
        SELECT array_agg(b.is_journalled) AS are_journalled, array_agg(b.attempt) AS block_attempts,
               array_agg(b.first) AS firsts,
               array_agg(b.last) AS lasts, array_agg(b.frames) AS frames
        FROM (SELECT false AS is_journalled, page.* FROM {_log_page("response.id", "response.number")} page
              WHERE response.status = 'in_progress'
              UNION ALL
              SELECT true, j.attempts[p.n], j.first_numbers[p.n], j.last_numbers[p.n], j.frames[p.n]
              FROM workers w {journal_of("response.id")}
              WHERE response.status = 'in_progress' AND w.id = response.worker AND j.batch > response.batch
                AND p.n IS NOT NULL AND j.last_numbers[p.n] > response.number
              ORDER BY is_journalled, first, last) b
    ) blocks
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(i.size), 0)::bigint AS size FROM items i
        WHERE NOT response.is_continued AND i.response_id = response.id AND i.direction = 'output'
    ) stored
    CROSS JOIN LATERAL (
        SELECT array_agg(i.payload ORDER BY i.position) AS items FROM items i
        WHERE NOT response.is_continued AND stored.size <= response.max_size AND i.response_id = response.id
          AND i.direction = 'output' AND (response.status <> 'in_progress' OR NOT EXISTS (
            SELECT 1 FROM tool_calls c WHERE c.response_id = i.response_id AND NOT c.finished
              AND c.position < i.position))
    ) items
    """,
        ShownResponseRow,
    )


SHOWN_RESPONSES = _shown_responses(_is_visible("a.project"))
"""Selects the responses `ids` as GETs of `projects` show them, and what the caller lacks of their
output. All in one snapshot: if a turn ended between two reads, it would be shown twice or not at
all (I7). No row: the project may not see the response (VISIBLE_RESPONSE).

Of a running response the caller has the items and the events up to `numbers` as of `attempts`,
`workers` and `checkpoints`, and has looked at the owner's journal up to `batches`. If the row still
has these three, no event up to that number and no item has changed, because only the owner writes,
it never uses a number twice, and it changes items only together with the checkpoint: the caller
gets the blocks after that number. Batches are stored one after the other, so what an earlier one
holds is known. Else the caller gets all items, and the blocks after the checkpoint.

In both cases that is a page of the event log, and the owner's journal, which is valid only behind
the last page. Items that the stream holds back behind a tool call that still runs are left out.
Items that are larger than `max_sizes`, all of a response together, are not read."""
WATCHED_RESPONSES = _shown_responses("r.project_id = a.project AND r.delete_requested_at IS NULL")
"""As SHOWN_RESPONSES, for operators: any response that is not deleted."""

OWNERS = column(
    "SELECT DISTINCT worker FROM responses WHERE id = ANY(:ids) AND worker IS NOT NULL", UUID
)
"""Selects the workers that own the responses `ids`."""


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """A batch of a worker's journal: five lists with one entry for each response."""

    batch: int
    response_ids: list[UUID]
    attempts: list[int]
    first_numbers: list[int]
    last_numbers: list[int]
    frames: list[bytes]

    def blocks(self) -> Iterator[tuple[UUID, LogBlock]]:
        """The batch as (response, block) pairs."""
        lists = self.response_ids, self.attempts, self.first_numbers, self.last_numbers, self.frames
        for response_id, attempt, first, last, frames in zip(*lists, strict=True):
            yield response_id, LogBlock(attempt, first, last, frames)


JOURNAL_BATCHES = Query(
    """
    SELECT batch, response_ids, attempts, first_numbers, last_numbers, frames FROM journal
    WHERE worker = :worker AND batch > :last ORDER BY batch LIMIT 200
    """,
    JournalBatch,
)
"""Selects the batches of a worker that are newer than `last`, for a web process that Redis does not
notify: it reads them once and distributes them to its readers."""
LAST_BATCH = column(
    "SELECT coalesce(max(batch), 0) AS last FROM journal WHERE worker = :worker", int
)
"""The number of a worker's newest batch, 0 if there is none."""

OWN_CONTAINERS = column(
    """
    SELECT DISTINCT coalesce(i.payload ->> 'container_id', i.payload #>> '{environment,container_id}') AS id
    FROM items i LEFT JOIN responses r ON r.id = i.response_id LEFT JOIN conversations c ON c.id = i.conversation_id
    WHERE coalesce(i.payload ->> 'container_id', i.payload #>> '{environment,container_id}') = ANY(CAST(:ids AS text[]))
      AND i.direction = 'output' AND i.type IN ('code_interpreter_call', 'shell_call')
      AND coalesce(r.project_id, c.project_id) = CAST(:project AS uuid)
    """,
    str,
)
"""Selects those of these ids of containers that an output of the project has named. The index
`ix_items_container` has only such items."""
