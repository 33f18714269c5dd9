"""No statement becomes slower with the number of responses that are stored.

The planner decides by the real sizes of the tables, so they are filled. At 20 000 responses each
table that grows with them is large enough that reading all of it costs more than any index. With
`./dev test --all` the same is done with a million, which takes minutes.
"""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from cli.database.statements import all_statements
from models.db.arrays import Bigints, Booleans, Byteas, Ints, Texts, Uuids
from models.db.database import Json, Jsonb
from models.db.queries import listing
from models.db.queries.create import NewRow, insert_values
from models.db.statement import NumberedQuery, Query, RowT
from models.db.sync import Parameters
from models.ids import new_uuid
from models.search_text import Minutes, marks_query
from tests.support.audit import AUDITED
from tests.support.many_responses import fill
from tests.support.stack import Databases

FEW = 20_000
MANY = pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])

LARGE = {"responses", "items", "event_log", "attempts", "tool_calls", "idempotency_keys"} | {
    "files",
    "file_parts",
    "batch_lines",
    "vector_store_files",
    "vector_store_chunks",
    "schedules",
    "schedule_runs",
    "search_documents",
}
"""The tables that grow with the responses, and have at least MIN_PAGES pages here."""
MIN_PAGES = 10
JIT_COST = 100_000
"""`jit_above_cost`: Postgres compiles a statement of a higher cost, which takes longer than these
statements run."""
READ_IN_ORDER = {
    "ix_responses_line",
    "ix_responses_no_backlog",
    "ix_responses_deleted",
    "ix_files_deleted",
    "ix_file_parts_unused",
    "ix_batches_turns",
    "ix_schedules_due_at",
    "ix_schedules_deleted",
    "ix_vector_store_files_waiting",
    "ix_vector_store_files_deleted",
    "ix_vector_store_files_useless_chunks",
}
"""Indexes of what waits for a worker or for the purge, which are read from their beginning."""
READ_ALL_OPEN = {
    *(
        f"cells.thing.{statement}[{kind}]"
        for statement in ("LIST", "FIND", "COPIES")
        for kind in ("webhook_endpoints", "containers")
    ),
    "cells.thing.FIND_LEFT",
    "retention.REPAIR_RESPONSES",
    "files.DELETABLE_PARTS",
    "files.FILE_TOTALS",
    "files.HIDE_EXPIRED_FILES",
    "file_contents.STORED_FILES",
    "line.LINE_PLACES",
    "line.PLACE_OF",
    "listing.LIST_OPEN_RESPONSES",
    "operations.STUCK",
    "operations.WORKERS",
    "operations.GAUGES",
    "organization.CANCEL_OF_PROJECT",
    "organization.MARK_CANCELLED",
    "operations.RETRYING_BY_UPSTREAM",
    "operations.WAITING_PROJECTS",
    "quotas.OPEN_RESPONSES",
    "quotas.QUOTA_STATE",
    "retention.DELETE_OLD_WORKERS",
    "operator.rotation.LAST_ITEM",
    "operator.rotation.SCHEDULES",
    "retrieval.STORED_VECTORS",
    "schedules.REPAIR_SCHEDULES",
}
"""They read all open responses, or batches: for operators, for archived projects, for one
that moves to another cell, for the purge
(one look into an index of what waits, or if files were deleted), only after processes have died, or
every few seconds for projects with quotas. An upload to a project with quotas reads all its files,
the metrics read all files, and a new vector store all its stores. The purge and a change of the
sealing key read all schedules. LAST_ITEM reads one end of an index, which looks the same in a
plan."""
BOUNDED = {
    "cells.thing.END_OF_WINDOW[vector_store_files]",
    "cells.thing.END_OF_WINDOW[schedules]",
    "console.RECENT_ENDS",
    "console.UPSTREAM_WAITS",
    "files.FILES_BY_PROJECT",
    "files.LIST_ALL_FILES",
    "operations.OLDEST_BACKLOG",
    "listing.RECENT_VALUES",
    "operations.OPEN_COUNT",
    "quotas.OPEN_BY_PROJECT",
    "search_documents.OLDEST_DOCUMENT",
}
"""They read one end of an index, as many rows as their parameter says: for operators."""
_ENTRY = "FROM vector_store_files WHERE delete_requested_at IS NULL ORDER BY id"
MAX_PAGES = 256
"""Pages that a statement for one or two responses touches at most."""


@dataclass(frozen=True, slots=True)
class ManyResponses:
    """A database with many responses, and some of its ids."""

    connection: AsyncConnection[TupleRow]
    project: UUID
    owner: UUID
    """a live worker"""
    web: UUID
    conversation: UUID
    running: list[UUID]
    """responses of `owner`"""
    orphans: list[UUID]
    """responses of a dead worker"""
    queued: list[UUID]
    ended: list[UUID]
    """responses that continue another one"""
    hidden: list[UUID]
    """responses that the purge deletes next"""
    file: UUID
    part: UUID
    batch: UUID
    vector_store: UUID
    entry: UUID
    """a file of the store"""
    schedule: UUID

    async def explain(self, options: str, sql: str, values: Mapping[str, object] | None) -> Any:
        """The plan of a statement, as JSON. What the statement changes is rolled back."""
        async with self.connection.transaction(force_rollback=True):
            explain = f"EXPLAIN ({options}, FORMAT JSON) {sql}"
            cursor = await self.connection.execute(explain.encode(), values)
            row = await cursor.fetchone()
        assert row is not None
        return row[0][0]["Plan"]


@pytest.fixture(scope="module", params=[FEW, MANY], ids=["thousands", "million"])
async def database(
    database_server: Databases, request: pytest.FixtureRequest
) -> AsyncIterator[ManyResponses]:
    dsn = await database_server.create_copy()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await fill(connection, request.param)

        async def ids(query: str) -> list[UUID]:
            cursor = await connection.execute(f"SELECT {query} LIMIT 2".encode())
            return [row[0] for row in await cursor.fetchall()]

        owned = "FROM responses r JOIN workers w ON w.id = r.worker"
        [owner, _] = await ids(f"w.id {owned} WHERE NOT w.dead")
        [web, _] = await ids("id FROM workers WHERE kind = 'web'")
        yield ManyResponses(
            connection,
            project=(await ids("id FROM projects"))[0],
            owner=owner,
            web=web,
            conversation=(await ids("id FROM conversations"))[0],
            running=await ids(f"id FROM responses WHERE worker = '{owner}'"),
            orphans=await ids(f"r.id {owned} WHERE w.dead"),
            queued=await ids("id FROM responses WHERE status = 'queued'"),
            ended=await ids("id FROM responses WHERE previous_response_id IS NOT NULL"),
            hidden=await ids("id FROM responses WHERE delete_requested_at IS NOT NULL"),
            file=(await ids("id FROM files WHERE delete_requested_at IS NULL"))[0],
            part=(await ids("id FROM file_parts"))[0],
            batch=(await ids("id FROM batches WHERE ended_at IS NULL"))[0],
            vector_store=(await ids(f"store_id {_ENTRY}"))[0],
            entry=(await ids(f"id {_ENTRY}"))[0],
            schedule=(await ids("id FROM schedules WHERE due_at IS NOT NULL"))[0],
        )


async def test_no_statement_reads_a_large_table_as_a_whole(database: ManyResponses) -> None:
    """With the plan that Postgres keeps for a prepared statement, whatever its values are."""
    cursor = await database.connection.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relpages >= %s", [MIN_PAGES]
    )
    assert {_whole_table(row[0]) for row in await cursor.fetchall()} >= LARGE
    read_as_a_whole: dict[str, set[str]] = {}
    costs: dict[str, float] = {}
    for name, statement in all_statements().items():
        if name in READ_ALL_OPEN | BOUNDED or not _has_plan(statement.sql):
            continue
        plan = await database.explain(
            "GENERIC_PLAN", NumberedQuery(statement.sql).sql.decode(), None
        )
        if tables := _read_as_a_whole(plan) & LARGE:
            read_as_a_whole[name] = tables
        if plan["Total Cost"] > JIT_COST:
            costs[name] = plan["Total Cost"]
    assert not read_as_a_whole
    assert not costs


async def test_a_statement_for_two_responses_touches_few_pages(database: ManyResponses) -> None:
    """It is executed, with the plan for these values."""
    pages: dict[str, int] = {}
    for name, known in _cases(database).items():
        statement = all_statements()[name]
        values = {
            parameter: known[parameter] for parameter in NumberedQuery(statement.sql).parameters
        }
        plan = await database.explain("ANALYZE, BUFFERS", statement.sql, values)
        assert name in READ_ALL_OPEN or not _read_as_a_whole(plan) & LARGE, name
        assert len(_partitions_read(plan)) <= 2, name
        # A CTE that writes may run after the rest; its pages are then not in those of the plan.
        writes = [part for part in plan.get("Plans", ()) if part["Node Type"] == "ModifyTable"]
        pages[name] = sum(
            part["Shared Hit Blocks"] + part["Shared Read Blocks"] for part in (plan, *writes)
        )
    few = pages.keys() - READ_ALL_OPEN
    assert not {name: pages[name] for name in few if pages[name] > MAX_PAGES}


async def test_the_console_reads_no_more_than_it_says(database: ManyResponses) -> None:
    """However many are stored: as many rows as its parameters allow, and what belongs to these."""
    rows = 200
    names = ("project", "purpose", "model", "upstream", "reason", "statuses", "since")
    bounded = dict.fromkeys(names)
    values = bounded | dict.fromkeys(("after", "name", "who", "action", "begin"))
    values |= {
        "before": UUID(int=2**128 - 1),
        "down_to": UUID(int=0),
        **dict.fromkeys(_OF_FILTERS),
        "missed": False,
        "max_rows": rows,
        "limit": rows,
        "rows": rows,
        "id": database.running[0],
        "conversation": database.conversation,
        "item": "msg_1",
        "begun": 1,
        "most": 20,
        "max_items": rows,
        "max_size": 2**20,
        "max_stored": 2**23,
        "characters": 400,
        "mark": b"event",
        "max_blocks": rows,
        "max_block": 2**15,
        "max_bytes": 2**19,
        "hash": b"hash",
        "store": database.vector_store,
        "status": None,
        "request_id": "batch_1",
        "width": 600,
        "kind": "model",
        "step": 3600,
        "names": 5,
        "first": date(2026, 1, 1),
        "projects": Uuids([database.project]),
        "include_archived": False,
        "at": datetime.max.replace(tzinfo=UTC),
        "texts": True,
        "ids": Uuids(database.ended),
        "last": date(2030, 1, 1),
        "key": None,
        "group_by": ["project_id", "model"],
        "look_at": rows,
        "max_summed": rows,
        "max_entries": rows,
    }
    minute = int(datetime.now(UTC).timestamp()) // 60
    documents = {"times": marks_query(Minutes(minute - 60, minute).marks()), "marks": ""}
    filtered = values | {"model": "none", "statuses": ["failed"]}
    of_upstream = values | {"upstream": "u", "max_rows": rows // 2, "rows": rows // 2}
    [end] = await _fetch(database, listing.CHUNK_END, values)
    cases = {
        **dict.fromkeys((*BOUNDED, *_OF_CONSOLE), values),
        "console.response.CHAIN_BEFORE": values | {"id": database.ended[0]},
        "listing.STATUS_COUNTS": filtered,
        "retrieval.LIST_ALL_STORES": values | {"max_rows": 5},
        "listing.LIST_RESPONSES": filtered | {"down_to": end.id},
        **dict.fromkeys(_OF_UPSTREAM, of_upstream),
        "listing.SEARCH_RESPONSES": values | documents | {"words": "frequent", "max_rows": 50},
    }
    pages = {}
    for name, known in cases.items():
        statement = all_statements()[name]
        given = {
            parameter: known[parameter] for parameter in NumberedQuery(statement.sql).parameters
        }
        plan = await database.explain("ANALYZE, BUFFERS", statement.sql, given)
        pages[name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert not {name: count for name, count in pages.items() if count > 6 * rows}


async def _fetch(database: ManyResponses, query: Query[RowT], values: Parameters) -> list[RowT]:
    given = {name: values[name] for name in NumberedQuery(query.sql).parameters}
    cursor = await database.connection.execute(query.sql, given)
    return query.rows(await cursor.fetchall())


def _has_plan(sql: str) -> bool:
    return sql.split(maxsplit=1)[0] in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _read_as_a_whole(plan: dict[str, Any]) -> set[str]:
    """The tables that it reads from end to end, or of which it reads a whole index."""
    indexes = {
        node["Index Name"]: node.get("Relation Name", node["Index Name"])
        for node in _nodes(plan)
        if "Index Name" in node and "Index Cond" not in node
    }
    return {
        *(
            _whole_table(node["Relation Name"])
            for node in _nodes(plan)
            if node["Node Type"] == "Seq Scan"
        ),
        *(_whole_table(table) for index, table in indexes.items() if index not in READ_IN_ORDER),
    }


_FILLED_PARTITION = re.compile(r"event_log_\d$")


def _whole_table(name: str) -> str:
    """The table to which a partition belongs that has rows."""
    return "event_log" if _FILLED_PARTITION.match(name) else name


def _partitions_read(plan: dict[str, Any]) -> set[str]:
    """The partitions of the event log that were read when the statement was executed."""
    return {
        node["Relation Name"]
        for node in _nodes(plan)
        if _FILLED_PARTITION.match(node.get("Relation Name", "")) and node["Actual Loops"]
    }


_OF_UPSTREAM = [
    "listing.LIST_FAILED_OF_UPSTREAM",
    "listing.FAILED_CHUNK_END",
    "listing.LIST_RETRYING_OF_UPSTREAM",
    "listing.RETRYING_CHUNK_END",
]
_OF_FILTERS = (
    *("metadata_key", "metadata_value", "window", "continuation", "words", "keys"),
    *("user", "safety_identifier", "prompt_cache_key"),
)
_OF_CONSOLE = [
    "activity.READ_ACTIVITY",
    "audit.LOOK",
    "audit.LOOK_END",
    "activity.READ_PARTS",
    "console.LIVE_WORKER_IDS",
    "console.DELETE_SESSION",
    "console.FIND_SESSION",
    "console.RECENT_TOKENS",
    "console.USE_LINK",
    "console.response.BLOCKS_WITH",
    "console.response.CALLER",
    "console.response.CHAIN_BEFORE",
    "console.response.FIRST_OUTPUT",
    "console.response.ITEM",
    "console.response.LARGE_MESSAGE",
    "console.response.OF_CONVERSATION",
    "listing.CHUNK_END",
    "listing.NEXT_RESPONSES",
    "listing.PREVIEWS",
    "listing.TOOL_CALLS",
    "organization.LAST_USES",
    "organization.PROJECTS_BY_NAME",
    "usage.USED_LATELY",
    "usage.USAGE_SUMS",
    "retrieval.ENTRIES_PAGE",
    "batches.RESPONSES_OF_BATCH",
]
_OF_RUNNING = [
    "claim.CHECKPOINTED_OUTPUT",
    "claim.LOGS_SINCE",
    "claim.LOG_ENDS",
    "claim.LOG_SINCE",
    "claim.UNFLUSHED_JOURNALS",
    "create.JOIN_BY_KEY",
    "create.JOIN_UNANSWERED",
    "end.CANCEL_QUEUED",
    "end.CANCEL_QUEUED_BY_CLIENT",
    "end.END[cancelled]",
    "end.END[completed]",
    "end.END[failed]",
    "end.REQUEST_CANCEL",
    "end.REQUEST_CANCEL_BY_CLIENT",
    "end.REQUEST_DELETE",
    "leases.LIVE_WORKERS",
    "line.CLAIM_NEXT",
    "line.CONFIRM",
    "line.LEAD_FOLLOW_UPS",
    "line.LINE_PLACES",
    "line.PLACE_OF",
    "leases.RENEW",
    "leases.RENEW_WEB",
    "listing.REQUEST_STATES",
    "listing.RESPONSE_DETAILS",
    "operations.MADE_BY_REQUEST",
    "operations.STATE",
    "progress.HELD_CALLS",
    "progress.LAST_FAILURE",
    "progress.PROJECT_OF",
    "read.INPUT_ITEMS[asc]",
    "read.JOURNAL_BATCHES",
    "read.LAST_BATCH",
    "read.LOG_PAGE",
    "read.MOVED_LOGS",
    "read.OUTPUT_ITEMS",
    "read.OWNERS",
    "read.RESPONSE",
    "read.SHOWN_RESPONSES",
    "read.UNDELETED_RESPONSE",
    "read.FOUND_RESPONSE",
    "read.VISIBLE_RESPONSE",
    "read.WATCHED_RESPONSES",
    "retention.DELETABLE",
    "retention.DELETE_EXPIRED_KEYS",
    "retention.DELETE_OLD_WORKERS",
    "retention.EXTEND_UNSTORED",
    "retention.HIDE_EXPIRED",
    "run.CHECKPOINT",
    "run.FINISH_CALL",
    "run.FLUSH",
    "run.FORGET_CRASHES",
    "run.JOURNAL",
    "run.OWNERSHIP_STATE",
    "run.RELEASE",
    "run.RELEASED",
    "run.RELEASE_INCOMPLETE",
    "run.START_CALL",
    "steers.KEEP_STEERS",
    "steers.PENDING_STEERS",
    "steers.QUEUED_STEERS",
    "steers.SUCCEED",
    "steering.ACCEPT",
    "steering.FIND_STEER",
    "steering.LIST_STEERS[asc]",
    "steering.LOCK_TARGET",
    "steering.STEERS_OF",
    "sweep.IS_DUE",
    "sweep.ORPHANS",
    "sweep.ORPHANS_TO_END",
    "sweep.REENQUEUE",
]
_OF_ORPHANS = [
    "claim.CLAIM",
    "claim.CLAIM_TO_END",
    "claim.LOCK_ORPHANS",
    "claim.RECORD_OWNER_DEATHS",
]
_OF_ENDED = [
    "history.ANSWERED_CALL",
    "history.CALL_ORIGINS",
    "history.HISTORY",
    "history.HISTORY_DIGEST",
    "history.PREVIOUS_RESPONSE",
    "retention.DELETE_ENDED",
]
_OF_CHAINS = [
    "chains.AWAIT_PREVIOUS",
    "chains.CONFIRM_WAITING",
    "chains.COUNT_WAITING",
    "chains.READY_SUCCESSORS",
    "chains.WAIT",
    "create.NOTE_RETRY",
    "retry.REQUEST_WITHOUT_INPUT",
    "retry.STORED_REQUEST",
]
_OF_FILES = [
    "files.ABANDON_FILE",
    "files.ABANDON_PARTS",
    "files.COMPLETE_FILE",
    "files.DELETABLE_PARTS",
    "files.DELETE_FILE",
    "files.DELETE_FILES",
    "files.DELETE_PARTS",
    "files.FILE_PARTS",
    "files.FIND_FILE",
    "file_contents.FIND_FILES",
    "file_contents.FINISH_PART",
    "file_contents.FORGET_PART",
    "files.HIDE_EXPIRED_FILES",
    "file_contents.INSERT_PART",
    "file_contents.STORED_CONTENTS",
    "files.FIND_UPLOAD",
    "files.LIST_FILES[asc]",
    "files.LIST_FILES[desc]",
]
_OF_BATCHES = [
    "batches.take.RELEASE_BATCH",
    "batches.take.RELEASE_EXPANSION",
    "batches.take.TAKE_BATCH",
    "batches.take.TAKE_TO_EXPAND",
    "batches.ADD_LINES",
    "batches.CANCEL_BATCH",
    "batches.CANCEL_LINES",
    "batches.COLLECT",
    "batches.DELETE_LINES",
    "batches.DELETE_OLD_BATCHES",
    "batches.ENDED_RESPONSES",
    "batches.END_BATCH",
    "batches.END_VALIDATION",
    "batches.FAIL_BATCH",
    "batches.FIND_BATCH",
    "batches.INSERT_LINES",
    "batches.LIST_BATCHES",
    "batches.take.MOVE_EXPANSION",
    "batches.MOVE_VALIDATION",
    "batches.RETRY_BATCH",
    "batches.NUMBER_PART",
    "quotas.COUNTED_BATCHES",
    "batches.READY_LINES",
    "batches.take.SET_EXPANDED",
    "batches.SET_OUTPUT_FILE[output]",
    "batches.UNEXPANDED_LINES",
]
_OF_SCHEDULES = [
    "schedules.FIND_RUN",
    "schedules.FIND_SCHEDULE",
    "schedules.INSERT_RUN",
    "schedules.MOVE_SCHEDULE",
    "schedules.RUNS_PAGE[asc]",
    "schedules.SCHEDULES_PAGE[desc]",
    "schedules.SECONDS_UNTIL_DUE",
    "schedules.TAKE_SCHEDULES",
    "schedules.DELETE_OLD_RUNS",
    "schedules.DELETE_RUNS_OF_DELETED",
    "schedules.HIDE_COMPLETED",
]
_OF_STORES = [
    "retrieval.search.CHUNKS",
    "retrieval.search.CHUNKS_WITH_WORDS",
    "retrieval.search.NEAREST_CHUNKS",
    "retrieval.worker.INDEX_WANTED",
    "retrieval.worker.SET_HAS_INDEX",
    "retrieval.worker.SWEEP_STORES",
    "retrieval.search.SEARCHED_STORES",
    "retrieval.worker.END_ENTRY",
    "retrieval.worker.HIDE_ENTRY",
    "retrieval.worker.KEEP_ENTRY",
    "retrieval.worker.KNOWN_FAILURE",
    "retrieval.worker.DEFER_ENTRY",
    "retrieval.worker.STORE_CHUNKS[embedded]",
    "retrieval.worker.STORE_CHUNKS[plain]",
    "retrieval.worker.TAKE_ENTRIES",
    "retrieval.worker.DELETE_CHUNKS",
    "retrieval.worker.DELETE_ENTRIES",
    "retrieval.worker.DELETE_STORES",
    "retrieval.worker.FORGET_CHUNKS",
    "retrieval.worker.HIDE_ENTRIES",
    "retrieval.worker.HIDE_EXPIRED_STORES",
    "retrieval.CANCEL_FILE_BATCH",
    "retrieval.CHUNK_TEXTS",
    "retrieval.DELETE_STORE",
    "retrieval.FIND_ENTRY",
    "retrieval.FIND_FILE_BATCH",
    "retrieval.FIND_STORE",
    "retrieval.HIDE_ENDED_ENTRIES",
    "retrieval.INSERT_ENTRIES",
    "retrieval.LIST_ENTRIES[asc]",
    "retrieval.LIST_ENTRIES[desc]",
    "retrieval.LIST_STORES[asc]",
    "retrieval.LIST_STORES[desc]",
    "retrieval.LOCK_STORE",
    "retrieval.REMOVE_ENTRY",
    "retrieval.search.TOUCH_STORES",
    "retrieval.UPDATE_ATTRIBUTES",
    "retrieval.UPDATE_STORE",
    "retrieval.VISIBLE_FILES",
]
_OF_SEARCH = [
    "search_documents.ADD_DOCUMENTS",
    "search_documents.DELETE_DOCUMENTS",
]
_OF_HIDDEN = [
    "retention.DELETE_HIDDEN",
    "retention.DELETE_LOG",
]
_OF_NEW = [
    "create.INSERT",
    "create.INSERT_IN_CONVERSATION",
    "create.INSERT_WITH_KEY",
    "create.INSERT_WITH_OPTIONS",
]
_OF_CONVERSATION = [
    "conversations.PAGE[asc]",
    "conversations.READ",
]


_OF_KEYS = [
    "repeats.CLAIM_KEY",
    "repeats.FORGET_ANSWERED",
    "repeats.FORGET_KEY",
    "repeats.NOTE_MADE",
    "repeats.RECORD_LOST",
    "repeats.RELEASE_KEY",
    "repeats.TAKE_LOST",
]


def _of_key(database: ManyResponses) -> dict[str, object]:
    return {
        "claim": UUID(int=1),
        "key_seconds": 60,
        "made": "conv_1",
        "sealed": None,
        "projects": Uuids([database.project] * 2),
        "keys": Texts(["sdk:1", "sdk:2"]),
        "waiters": Uuids([None, UUID(int=1)]),
    }


def _cases(database: ManyResponses) -> dict[str, dict[str, object]]:
    """The statements that run in the background or for each request, by name, with their values.

    The statements of operators are not among them. OWNED_RESPONSES and STORED_LOGS read all
    responses of one worker, of which there are many.
    """
    common = _common_values(database) | AUDITED | {"takes_seat": True, "look": "all"}
    arrays = {"frames": Byteas([b"frame"] * 2)}
    cases = {
        **dict.fromkeys(_OF_RUNNING, common),
        **{name: common | {"ids": Uuids(database.orphans)} for name in _OF_ORPHANS},
        **{name: common | {"id": database.ended[0]} for name in _OF_ENDED},
        **{name: common | _of_chain(database) for name in _OF_CHAINS},
        **{name: common | {"texts": True, "characters": 100} for name in _OF_SEARCH},
        **{
            name: common | {"ids": Uuids(database.hidden), "begins": Uuids([]), "ends": Uuids([])}
            for name in _OF_HIDDEN
        },
        **{name: common | _of_file(database) for name in _OF_FILES},
        **{name: common | _of_batch(database) for name in _OF_BATCHES},
        **{name: common | _of_store(database) for name in _OF_STORES},
        **{name: common | _of_schedule(database) for name in _OF_SCHEDULES},
        **{name: _new_response(database, name) for name in _OF_NEW},
        **{name: common | {"id": database.conversation} for name in _OF_CONVERSATION},
        "claim.CLAIM_UNOWNED_TOGETHER": common | {"ids": Uuids(database.queued)},
        "end.END_TOGETHER": common | arrays | {"endings": Jsonb(_endings(database))},
        "claim.CLAIM_UNOWNED": common | {"id": database.queued[0]},
        "history.REFERENCED_ITEMS": common | {"ids": ["msg_1", "msg_2"]},
        **{name: common | _of_key(database) for name in _OF_KEYS},
        "create.VOID_UNCLEAR_CREATES": common | {"ids": Uuids(database.queued)},
        "steers.RETURN_VOIDED": common | {"ids": Uuids(database.queued)},
        "steers.COMMIT_PENDING": common | {"steers": Uuids([new_uuid()])},
    }
    for name in ("run.FLUSH", "run.JOURNAL", "run.RELEASE"):
        cases[name] = cases[name] | arrays
    for name in ("batches.ADD_LINES", "batches.END_VALIDATION", "batches.FAIL_BATCH"):
        cases[name] = cases[name] | {"errors": Json([{"line": 1}])}
    cases["run.RELEASE"] |= {"failures": [None, None]}
    for name in ("read.INPUT_ITEMS[asc]", "conversations.PAGE[asc]", "steering.LIST_STEERS[asc]"):
        cases[name] = cases[name] | {"after": None}
    cases["progress.HELD_CALLS"] = common | {"shown": 0}
    cases["line.LINE_PLACES"] = common | {"background": True, "lane": 1}
    cases["read.SHOWN_RESPONSES"] = cases["read.WATCHED_RESPONSES"] = common | {
        "workers": Uuids([database.owner] * 2),
        "checkpoints": Ints([-1, -1]),
        "batches": Bigints([0, 0]),
        "max_sizes": Bigints([2**62, 2**62]),
        "projects": Uuids([database.project] * 2),
    }
    cases["claim.UNFLUSHED_JOURNALS"] = common | {"previous": Uuids([database.owner] * 2)}
    cases["read.JOURNAL_BATCHES"] = common | {"last": 0}
    cases["retention.HIDE_EXPIRED"] = common | {"id": UUID(int=0)}
    for name in ("END_ENTRY", "HIDE_ENTRY", "KEEP_ENTRY", "DEFER_ENTRY", "STORE_CHUNKS[plain]"):
        cases[f"retrieval.worker.{name}"] |= {"id": database.entry}
    cases["retrieval.worker.STORE_CHUNKS[embedded]"] |= {"id": database.entry}
    cases["retrieval.FIND_ENTRY"] |= {"id": database.file}
    cases["retrieval.INSERT_ENTRIES"] |= {
        "ids": Uuids([new_uuid()]),
        "attributes": Texts(["{}"]),
    }
    cases["retention.DELETABLE"] = common | {"items": 2}
    return cases


def _new_response(database: ManyResponses, name: str) -> dict[str, object]:
    in_conversation = "IN_CONVERSATION" in name
    row = NewRow(
        id=new_uuid(),
        project=database.project,
        background=True,
        store=True,
        model="m",
        parameters=b"{}",
        conversation=database.conversation if in_conversation else None,
        revision=0 if in_conversation else None,
        created_at=1_800_000_000,
        waiter=None,
        items=b"[]",
        last=1,
        frames=b"frames",
        key="new",
        body_hash=b"hash",
        key_seconds=600,
        continuation="thread",
    )
    limits = timedelta(days=30), timedelta(days=1), timedelta(minutes=10)
    return insert_values([row], database.web, *limits)


def _of_chain(database: ManyResponses) -> dict[str, object]:
    return {"id": database.ended[0], "most": 1000, "new": new_uuid()}


def _endings(database: ManyResponses) -> list[dict[str, object]]:
    ending = {
        "attempt": 1,
        "status": "completed",
        "turns": 1,
        "unanswered_calls": [],
        "completed_at": 1_800_000_000,
        "position": 1,
        "items": [],
        "first": 10,
        "last": 11,
    }
    return [ending | {"id": str(response)} for response in database.running]


def _of_file(database: ManyResponses) -> dict[str, object]:
    return {
        "id": database.file,
        "part": database.part,
        "after": database.file,
        "purpose": None,
        "media_type": None,
        "upload_time": timedelta(hours=1),
        "ids": Uuids([database.file]),
        "response_created_at": 1_700_000_000,
    }


def _of_store(database: ManyResponses) -> dict[str, object]:
    """Of an entry, or of the store that has it; each statement has its own `id`."""
    entry, store = database.entry, database.vector_store
    one = Uuids([entry])
    return {
        **dict.fromkeys(("first", "count", "bytes", "input_tokens", "attempts"), 1),
        **dict.fromkeys(("free", "free_for_newcomers", "ranked", "limit", "rows", "days"), 2),
        **dict.fromkeys(("lease", "pause", "keep"), timedelta(hours=1)),
        **dict.fromkeys(("filter", "after", "until", "status", "code", "message", "name"), None),
        "id": store,
        "store": store,
        "entry": entry,
        "batch": None,
        "file": database.file,
        "ids": one,
        "files": Uuids([database.file]),
        "busy": Uuids([database.project]),
        "entries": one,
        "numbers": Ints([0]),
        "texts": Texts(["a"]),
        "tokens": Ints([1]),
        "models": Texts(["m"]),
        "upstreams": Texts(["u"]),
        "costs": Bigints([1]),
        "embeddings": Texts(["[1,0,0,0]"]),
        "embedding": "[1,0,0,0]",
        "dimensions": 4,
        "model": "m",
        "upstream": "u",
        "api_key": None,
        "query": "word",
        "language": "english",
        "store_word": f"'§{store.hex}'",
        "attributes": Jsonb({}),
        "max_tokens": Ints([800]),
        "overlaps": Ints([400]),
        "chunks": 10,
        "metadata": None,
        "set_expiry": True,
    }


def _of_schedule(database: ManyResponses) -> dict[str, object]:
    times = dict.fromkeys(("decided_until", "until", "next", "slot"), datetime.now(UTC))
    absent = dict.fromkeys(("after", "skipped_after", "response", "error"))
    return {
        **times,
        **absent,
        **dict.fromkeys(("lease", "retention"), timedelta(days=29)),
        "id": database.schedule,
        "schedule": database.schedule,
        "project": database.project,
        "revision": 0,
        "upcoming": [],
        "requested": False,
        "status": "created",
        "free": 8,
        "rows": 2,
        "max_rows": 2,
    }


def _of_batch(database: ManyResponses) -> dict[str, object]:
    return {
        **dict.fromkeys(_BATCH_NUMBERS, 1),
        **dict.fromkeys(("pause", "retention", "lifetime"), timedelta(hours=1)),
        "id": database.batch,
        "after": database.batch,
        "lines": Ints([1, 2]),
        "custom_ids": Texts(["a", "b"]),
        "response_ids": Uuids([None, None]),
        "errors": Texts([None, None]),
        "ids": Uuids(database.running),
        "file": new_uuid(),
        "filename": "output.jsonl",
        "open_until": datetime.now(UTC),
        "part": database.part,
        "model": "m",
        "models": Texts(["m", "n"]),
        "max_models": 10,
        "retried": new_uuid(),
        "bytes": 1,
        **AUDITED,
        "rows": 2,
    }


_BATCH_NUMBERS = (
    *("added", "completed", "failed", "input_tokens", "cached_tokens", "output_tokens"),
    *("reasoning_tokens", "output_parts", "error_parts", "new_output_parts", "new_error_parts"),
    *("from_byte", "to_byte", "to_line", "requests", "number"),
)


def _common_values(database: ManyResponses) -> dict[str, object]:
    """Values by the name of the parameter."""
    ones = Ints([1, 1])
    return {
        **dict.fromkeys(_NULL),
        **_NUMBERS,
        **dict.fromkeys(("items", "calls", "changed"), "[]"),
        "origins": "{}",
        "keys": ["0" * 32, "1" * 32],
        **dict.fromkeys(("me", "worker"), database.owner),
        **dict.fromkeys(("web", "waiter"), database.web),
        **dict.fromkeys(("lifetime", "wall_clock"), timedelta(hours=1)),
        **dict.fromkeys(("lease", "waiting", "interval"), timedelta(seconds=5)),
        **dict.fromkeys(("background", "interactive", "include_unstored", "in_line"), True),
        **dict.fromkeys(("flex_wait", "lead"), timedelta(minutes=10)),
        **dict.fromkeys(("attempts", "afters", "numbers"), ones),
        **dict.fromkeys(("quarantine", "only_newcomers"), False),
        "unanswered_calls": list[str](),
        # Not empty: without any the planner reads the smallest index.
        "item_ids": ["msg_1"],
        "project": database.project,
        "id": database.running[0],
        "ids": Uuids(database.running),
        "firsts": Ints([10, 10]),
        "lasts": Ints([11, 11]),
        "frames": b"frame",
        "item": "{}",
        "continuation": "thread",
        "key": "sdk:4",
        "request_id": "req_400",
        "body_hash": b"hash",
        "call_id": "call_1",
        "outcomes": ["handed_over"] * 2,
        "pauses": [None, None],
        "projects": [database.project] * 2,
        "response": database.running[0],
        **dict.fromkeys(("steer", "successor"), new_uuid()),
        "required_input": "[]",
        "input": '"x"',
        "queue_wait": timedelta(days=1),
        "created_at": 1_800_000_000,
        "kinds": Booleans([True, False]),
        "cursor": database.project,
        "running": ones,
        "ahead": [0.0, 1.0],
        "slots": 10.0,
        "settled_at": datetime.now(UTC),
        # the position of the purge: before everything
        "expires_at": datetime.min.replace(tzinfo=UTC),
    }


_NULL = (
    *(
        "usage",
        "cost",
        "error",
        "reason",
        "failure",
        "service_tier",
        "upstream",
        "failed_upstream",
        "upstream_fields",
        "result",
        "conversation",
        "parameters",
        "key_id",
        "sealed",
    ),
)
_NUMBERS = {
    **dict.fromkeys(("attempt", "first_attempt", "turns", "next_output_index"), 1),
    **dict.fromkeys(("position", "trimmed", "revision", "after", "steers"), 0),
    **dict.fromkeys(("max_pending", "max_bytes"), 100_000),
    "first": 10,
    "last": 11,
    "number": 5,
    "checkpoint": -1,
    "batch": 1000,
    "answered": 5,
    "max_rows": 2,
    "rows": 2,
    "limit": 2,
    "page": 2,
    "bytes": 100_000,
    "max_size": 100_000,
    "size": 100_000,
    "history_size": 100_000,
    "completed_at": 1_800_000_000,
}
