"""Responses as an operator lists them, over all projects."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from models.db.queries.common import (
    LAST_FAILURES,
    MISSED_WINDOW,
    OPEN,
    OPERATOR_STATUS,
    RETRYING,
    UPSTREAM,
    WINDOW,
)
from models.db.queries.search_documents import HAS_TEXT
from models.db.statement import Query, column
from models.ids import response_id
from models.lifecycle import OperatorStatus
from models.time_text import seconds_between


@dataclass(frozen=True, slots=True)
class ListedResponseRow:
    """A response in a list."""

    id: UUID
    status: str
    background: bool
    project: str
    """its name"""
    model: str
    upstream: str | None
    """that has failed, else that answered its last turn"""
    reason: str | None
    attempt: int
    input_tokens: int | None
    output_tokens: int | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    """in whole seconds"""
    ended_at: datetime | None
    """when its last event was stored; null while it is open"""
    window: str | None
    """its completion window (models/windows.py)"""
    missed_window: bool | None
    """it has ended too late, or has not ended although its window is over; null: it has none"""
    continuation_id: str | None
    operator_status: str
    """its `OperatorStatus`"""
    retrying_since: datetime | None
    """the first failure of the upstream; null: it is not `retrying`, as for the next three"""
    failed_tries: int | None
    next_try_at: datetime | None
    """null also while it is tried"""
    last_error: str | None
    now: datetime

    @property
    def public_id(self) -> str:
        """Its id as clients see it."""
        return response_id(self.id)

    @property
    def age_seconds(self) -> float:
        """Since its creation."""
        return round(seconds_between(self.created_at, self.now), 3)

    @property
    def next_try_seconds(self) -> float:
        """Until its upstream is tried again; 0: now, or it is not `retrying`."""
        return seconds_between(self.now, self.next_try_at or self.now)

    @property
    def run_seconds(self) -> float | None:
        """From its first claim to its end, or until now; None: no worker has claimed it."""
        if self.started_at is None:
            return None
        return round(seconds_between(self.started_at, self.ended_at or self.now), 3)


_LISTED = f"""
    r.id, r.status, r.background, p.name AS project, r.model, {UPSTREAM} AS upstream, r.reason, r.attempt,
    (r.usage ->> 'input_tokens')::bigint AS input_tokens, (r.usage ->> 'output_tokens')::bigint AS output_tokens,
    r.created_at, r.started_at, r.completed_at, CASE WHEN r.completed_at IS NOT NULL THEN coalesce(
        (SELECT e.stored_at FROM event_log e WHERE e.response_id = r.id ORDER BY e.first_number DESC LIMIT 1),
        r.completed_at) END AS ended_at,
    {WINDOW} AS window, {MISSED_WINDOW} AS missed_window, r.continuation_id,
    {OPERATOR_STATUS} AS operator_status, CASE WHEN {RETRYING} THEN r.retrying_since END AS retrying_since,
    CASE WHEN {RETRYING} THEN r.failed_tries END AS failed_tries,
    CASE WHEN {RETRYING} THEN r.resume_at END AS next_try_at,
    CASE WHEN {RETRYING} THEN {LAST_FAILURES} #>> '{{-1,message}}' END AS last_error, clock_timestamp() AS now"""

_ID_AT = """CAST(rpad(lpad(to_hex(floor(extract(epoch FROM now() - CAST(:since AS interval) - interval '1 hour')
                                            * 1000)::bigint), 12, '0'), 32, '0') AS uuid)"""
"""The smallest id of the time `since` ago. The first 48 bits of an id are milliseconds, on the clock
of its web process: an hour of difference is allowed."""


def _parameter(name: str) -> str:
    """The client has set this parameter of the request to `:name`; null: to anything."""
    return f"(CAST(:{name} AS text) IS NULL OR r.parameters ->> '{name}' = CAST(:{name} AS text))"


_FITS = f"""r.delete_requested_at IS NULL
    AND (CAST(:since AS interval) IS NULL OR r.created_at >= now() - CAST(:since AS interval))
          AND (CAST(:project AS text) IS NULL OR p.name LIKE CAST(:project AS text))
          AND (CAST(:model AS text) IS NULL OR r.model LIKE CAST(:model AS text))
          AND (CAST(:upstream AS text) IS NULL OR {UPSTREAM} = CAST(:upstream AS text))
          AND (CAST(:reason AS text) IS NULL OR r.reason = CAST(:reason AS text))
          AND (CAST(:window AS text) IS NULL OR {WINDOW} = CAST(:window AS text))
          AND (NOT CAST(:missed AS boolean) OR {MISSED_WINDOW})
          AND (CAST(:continuation AS text) IS NULL OR r.continuation_id = CAST(:continuation AS text))
          AND (CAST(:keys AS uuid[]) IS NULL OR r.api_key_id = ANY(CAST(:keys AS uuid[])))
          AND {_parameter("user")} AND {_parameter("safety_identifier")} AND {_parameter("prompt_cache_key")}
          AND (CAST(:metadata_key AS text) IS NULL
               OR r.parameters -> 'metadata' ->> CAST(:metadata_key AS text) = CAST(:metadata_value AS text))"""
_IN_RANGE = f"r.id >= greatest({_ID_AT}, CAST(:down_to AS uuid)) AND r.id < CAST(:before AS uuid)"


def _list(condition: str) -> Query[ListedResponseRow]:
    return Query(
        f"""
        SELECT {_LISTED} FROM responses r JOIN projects p ON p.id = r.project_id
        WHERE {condition} AND (CAST(:statuses AS text[]) IS NULL OR {OPERATOR_STATUS} = ANY(CAST(:statuses AS text[])))
          AND {_FITS}
        ORDER BY r.id DESC LIMIT :max_rows
        """,
        ListedResponseRow,
    )


LIST_RESPONSES = _list(_IN_RANGE)
"""Selects the newest responses before the id `before` that were created within `since` and fit the
other parameters; null: any. It reads the primary key backwards from there, at most to the rows of
that time and to the id `down_to`."""
LIST_OPEN_RESPONSES = _list(f"r.status IN {OPEN} AND r.id < CAST(:before AS uuid)")
"""Selects the newest of the responses that have not ended, and fit the parameters as in
LIST_RESPONSES. It reads all open responses."""

_QUERY = "websearch_to_tsquery('simple', CAST(:words AS text))"
SEARCH_RESPONSES = Query(
    f"""
    WITH query AS MATERIALIZED (
             SELECT CAST(:times AS tsquery) && CAST(:marks AS tsquery)
                    && CASE WHEN CAST(:words AS text) IS NULL THEN '' ELSE {_QUERY} END AS query
             WHERE CAST(:words AS text) IS NULL OR numnode({_QUERY}) > 0),
         matching AS MATERIALIZED (
             SELECT d.response_id, d.has_text FROM search_documents d WHERE d.document @@ (SELECT query FROM query))
    SELECT {_LISTED}
    FROM (SELECT * FROM matching d
          WHERE d.response_id >= CAST(:down_to AS uuid) AND d.response_id < CAST(:before AS uuid)
          ORDER BY d.response_id DESC) d
    CROSS JOIN LATERAL (SELECT * FROM responses r WHERE r.id = d.response_id OFFSET 0) r
    JOIN projects p ON p.id = r.project_id
    WHERE (CAST(:words AS text) IS NULL OR d.has_text AND {HAS_TEXT})
      AND (CAST(:statuses AS text[]) IS NULL OR {OPERATOR_STATUS} = ANY(CAST(:statuses AS text[])))
      AND {_FITS}
    ORDER BY d.response_id DESC LIMIT :max_rows
    """,
    ListedResponseRow,
)
"""Selects the newest of the responses whose search documents have one of the marks `times`, all
`marks` and `words`, and that fit the parameters of LIST_RESPONSES. `times` bounds how many documents
are read; `words` as `websearch_to_tsquery` reads them, null: any."""


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """The last response of a part of a list."""

    id: UUID
    created_at: datetime


def _chunk_end(condition: str) -> Query[ChunkEnd]:
    return Query(
        f"""
        SELECT r.id, r.created_at FROM responses r
        WHERE {condition} AND r.id >= coalesce({_ID_AT}, CAST('00000000-0000-0000-0000-000000000000' AS uuid))
          AND r.id < CAST(:before AS uuid)
        ORDER BY r.id DESC OFFSET CAST(:rows AS int) LIMIT 1
        """,
        ChunkEnd,
    )


CHUNK_END = _chunk_end("true")
"""Selects where the next `rows` responses end that LIST_RESPONSES would read. No row: it would not
read so many."""

_OF_UPSTREAM = "r.failed_upstream = CAST(:upstream AS text)"
_FAILED = f"{_OF_UPSTREAM} AND r.status = 'failed'"
_RETRYING = f"{_OF_UPSTREAM} AND r.status IN {OPEN}"
LIST_FAILED_OF_UPSTREAM = _list(f"{_FAILED} AND {_IN_RANGE}")
"""LIST_RESPONSES of those that failed with one upstream, by an index of these."""
FAILED_CHUNK_END = _chunk_end(_FAILED)
"""CHUNK_END for LIST_FAILED_OF_UPSTREAM."""
LIST_RETRYING_OF_UPSTREAM = _list(f"{_RETRYING} AND {_IN_RANGE}")
"""LIST_RESPONSES of those that wait for one upstream, by an index of these."""
RETRYING_CHUNK_END = _chunk_end(_RETRYING)
"""CHUNK_END for LIST_RETRYING_OF_UPSTREAM."""


@dataclass(frozen=True, slots=True)
class ListScan:
    """How a list reads responses, the newest first."""

    rows: Query[ListedResponseRow]
    chunk_end: Query[ChunkEnd]


SCAN_OF_ALL = ListScan(LIST_RESPONSES, CHUNK_END)
_SCANS = {
    OperatorStatus.FAILED.value: ListScan(LIST_FAILED_OF_UPSTREAM, FAILED_CHUNK_END),
    OperatorStatus.RETRYING.value: ListScan(LIST_RETRYING_OF_UPSTREAM, RETRYING_CHUNK_END),
}


def scan_of_upstream(statuses: Sequence[str] | None, upstream: str | None) -> ListScan | None:
    """How responses with these statuses are found by an index of what failed or waits because of an
    upstream; None: there is no such index."""
    if upstream is None or statuses is None or len(statuses) != 1:
        return None
    return _SCANS.get(statuses[0])


@dataclass(frozen=True, slots=True)
class StatusCount:
    """How many of the responses that were looked at have an `OperatorStatus` and fit."""

    status: str
    responses: int


STATUS_COUNTS = Query(
    f"""
    SELECT {OPERATOR_STATUS} AS status, count(*) AS responses
    FROM (SELECT * FROM responses r
          WHERE r.id >= coalesce({_ID_AT}, CAST('00000000-0000-0000-0000-000000000000' AS uuid))
          ORDER BY r.id DESC LIMIT :max_rows) r
    JOIN projects p ON p.id = r.project_id WHERE {_FITS} GROUP BY 1
    """,
    StatusCount,
)
"""Counts by status those of the newest `max_rows` responses that fit the parameters of LIST_RESPONSES, whatever
their statuses."""

RESPONSES_BY_PREFIX = column(
    "SELECT id FROM responses WHERE id BETWEEN :first AND :last ORDER BY id LIMIT 2", UUID
)
"""Selects the responses whose ids are in this range, at most two."""


@dataclass(frozen=True, slots=True)
class ResponseDetails:
    """What a response's row says about it, for an operator."""

    id: UUID
    status: str
    background: bool
    project: str
    model: str
    operator_status: str
    """its `OperatorStatus`"""
    upstream: str | None
    """that has failed, else that answered its last turn"""
    reason: str | None
    error: dict[str, Any] | None
    attempt: int
    turns: int
    usage: dict[str, Any] | None
    cost: int | None
    """in billionths of the currency (models/prices.py); null: not known, or not ended"""
    store: bool
    previous_response_id: UUID | None
    conversation_id: UUID | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    deadline: datetime
    expires_at: datetime
    deleted: bool
    service_tier: str | None
    """that the upstream reported"""
    request_id: str | None
    traceparent: str | None
    metadata: dict[str, str] | None
    input_items: int
    output_items: int
    """those that are stored: all of a response that has ended, else those of finished turns"""
    tool_calls: int
    """calls that this server makes or has made"""
    retry_of: str | None
    """the public id of the response that it runs again"""
    retried_by: UUID | None
    waits: bool
    """for the end of its previous response"""
    window: str | None
    """its completion window (models/windows.py)"""
    window_ends_at: datetime | None
    missed_window: bool | None
    """as in ListedResponseRow"""
    continuation_id: str | None
    moderation: Any
    """its field `moderation`, as this server or a native upstream has made it"""


RESPONSE_DETAILS = Query(
    f"""
    SELECT r.id, r.status, r.background, p.name AS project, r.model, {OPERATOR_STATUS} AS operator_status,
           {UPSTREAM} AS upstream, r.reason, r.error, r.attempt, r.turns, r.usage, r.cost, r.store,
           r.previous_response_id, r.conversation_id, r.created_at, r.started_at, r.completed_at, r.deadline,
           r.expires_at,
           r.delete_requested_at IS NOT NULL AS deleted, r.service_tier, r.request_id, r.traceparent,
           r.parameters -> 'metadata' AS metadata,
           (SELECT count(*) FROM items i WHERE i.response_id = r.id AND i.direction = 'input') AS input_items,
           (SELECT count(*) FROM items i WHERE i.response_id = r.id AND i.direction = 'output') AS output_items,
           (SELECT count(*) FROM tool_calls c WHERE c.response_id = r.id) AS tool_calls,
           r.parameters ->> 'retry_of' AS retry_of, r.retried_by,
           r.waits IS TRUE AND r.status = 'queued' AS waits,
           {WINDOW} AS window, r.window_ends_at, {MISSED_WINDOW} AS missed_window, r.continuation_id,
           r.upstream_fields -> 'moderation' AS moderation
    FROM responses r JOIN projects p ON p.id = r.project_id WHERE r.id = :id
    """,
    ResponseDetails,
)


@dataclass(frozen=True, slots=True)
class RequestState:
    """How far a response is with what was requested of it."""

    id: UUID
    status: str
    requeued: bool
    """a worker has released it since a requeue was requested, or none was"""


REQUEST_STATES = Query(
    f"""
    SELECT r.id, r.status, r.requeue_requested_at IS NULL OR r.status NOT IN {OPEN} AS requeued
    FROM responses r WHERE r.id = ANY(CAST(:ids AS uuid[]))
    """,
    RequestState,
)
"""Selects these responses; one without a row was deleted."""


@dataclass(frozen=True, slots=True)
class ToolCallRow:
    """A call of a server tool."""

    id: str
    """of its item"""
    turn: int
    """in which the model asked for it; 0: before the first"""
    position: int
    type: str
    name: str | None
    server: str | None
    """the label of its MCP server"""
    attempt: int | None
    """that began to run it last"""
    finished: bool
    failed: bool


TOOL_CALLS = Query(
    """
    SELECT i.item_id AS id, c.turn, c.position, i.type,
           i.payload ->> 'name' AS name, i.payload ->> 'server_label' AS server,
           c.started_attempt AS attempt, c.finished,
           c.finished AND coalesce(jsonb_typeof(i.payload -> 'error') <> 'null' OR i.payload ->> 'status' = 'failed',
                                   false) AS failed
    FROM tool_calls c JOIN items i ON i.response_id = c.response_id AND i.direction = 'output'
      AND i.position = c.position
    WHERE c.response_id = :id ORDER BY c.position LIMIT :max_rows
    """,
    ToolCallRow,
)
"""Selects the first calls of server tools of a response, in the order of its output."""

NEXT_RESPONSES = column(
    """
    SELECT id FROM responses WHERE previous_response_id = :id AND delete_requested_at IS NULL
    ORDER BY id LIMIT :max_rows
    """,
    UUID,
)
"""Selects the first responses that continue this one."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The beginnings of what a response was asked last, and of what it answered."""

    id: UUID
    input: str | None
    output: str | None
    """null: it has none, or its message is large"""


def _message_text(direction: str, condition: str, order: str) -> str:
    return f"""(SELECT left((SELECT string_agg(part ->> 'text', ' ') FROM jsonb_array_elements(
                         CASE jsonb_typeof(m.payload -> 'content') WHEN 'array' THEN m.payload -> 'content'
                              ELSE '[]' END) part), CAST(:characters AS int))
                FROM (SELECT * FROM items i WHERE i.response_id = given.id AND i.direction = '{direction}'
                      ORDER BY i.position {order} LIMIT 20) m
                WHERE m.type = 'message' AND m.size <= 65536 {condition} LIMIT 1)"""


PREVIEWS = Query(
    f"""
    SELECT given.id, {_message_text("input", "AND m.payload ->> 'role' = 'user'", "DESC")} AS input,
           {_message_text("output", "", "ASC")} AS output
    FROM unnest((SELECT CAST(:ids AS uuid[]))) AS given (id)
    """,
    Preview,
)
"""Selects the beginnings of the last message of the user and of the first message of the output."""


@dataclass(frozen=True, slots=True)
class RecentValues:
    """What the newest responses have; each without duplicates, sorted."""

    models: list[str]
    upstreams: list[str]
    metadata: list[str]
    """keys"""


RECENT_VALUES = Query(
    """
    WITH newest AS MATERIALIZED (SELECT r.model, r.upstream, r.parameters -> 'metadata' AS metadata
                                 FROM responses r ORDER BY r.id DESC LIMIT :max_rows)
    SELECT ARRAY(SELECT DISTINCT model FROM newest ORDER BY model LIMIT 200) AS models,
           ARRAY(SELECT DISTINCT upstream FROM newest WHERE upstream IS NOT NULL ORDER BY upstream LIMIT 200)
               AS upstreams,
           ARRAY(SELECT DISTINCT key FROM newest CROSS JOIN LATERAL json_object_keys(
                     CASE json_typeof(metadata) WHEN 'object' THEN metadata ELSE '{}' END) key
                 ORDER BY key LIMIT 200) AS metadata
    """,
    RecentValues,
)
"""Collects the values of the newest `max_rows` responses. Always one row."""
PROJECT_NAMES = column("SELECT name FROM projects ORDER BY name LIMIT :max_rows", str)
PROJECT_NAMED = column("SELECT id FROM projects WHERE name = :name", UUID)
KEYS_NAMED = column(
    """
    SELECT id FROM api_keys WHERE name = CAST(:key AS text) OR starts_with(prefix, CAST(:prefix AS text))
    ORDER BY id LIMIT :max_rows
    """,
    UUID,
)
"""Selects the keys with this name, or with these first characters."""
