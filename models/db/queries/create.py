"""Storing a new response: its row, input, secrets and first events, and the key of its request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from operator import attrgetter
from uuid import UUID

import msgspec

from models.db.arrays import Bigints, Booleans, Byteas, Ints, Texts, Uuids
from models.db.queries.common import INSERT_INTO_LOG, OPEN, array, insert_items
from models.db.queries.repeats import KEY_IS_STALE, process_ended
from models.db.statement import Query, Statement, column
from models.lifecycle import Lane

_COLUMNS = {
    "id": "uuid",
    "project": "uuid",
    "background": "bool",
    "store": "bool",
    "model": "text",
    "parameters": "text",
    "previous": "uuid",
    "conversation": "uuid",
    "revision": "bigint",
    "created_at": "bigint",
    "waiter": "uuid",
    "traceparent": "text",
    "request_id": "text",
    "cache_key": "bytea",
    "cache_ttl": "int",
    "lane": "int",
    "items": "text",
    "last": "int",
    "frames": "bytea",
    "key_id": "text",
    "sealed": "bytea",
    "key": "text",
    "body_hash": "bytea",
    "key_seconds": "int",
    "api_key": "uuid",
    "retention": "bigint",
    "kept_for": "int",
}
"""The columns of `new`, the responses that one statement stores. Each is a parameter, an array."""
_OPTIONS = {"ends_in": "int", "urgent_in": "int", "continuation": "text"}
"""Further columns of `new`, in all statements but INSERT."""
_ARRAYS = {
    "uuid": Uuids,
    "bool": Booleans,
    "text": Texts,
    "bytea": Byteas,
    "int": Ints,
    "bigint": Bigints,
}


class NewRow(msgspec.Struct, frozen=True, kw_only=True):
    """A response to be stored, with everything that is stored together with it."""

    id: UUID
    project: UUID
    background: bool
    store: bool
    model: str
    parameters: bytes
    """JSON"""
    previous: UUID | None = None
    conversation: UUID | None = None
    revision: int | None = None
    """the revision of the conversation that the request was checked against"""
    created_at: int
    """seconds since the epoch"""
    waiter: UUID | None
    """the connection that waits for the answer"""
    traceparent: str | None = None
    request_id: str | None = None
    """of the request that makes it (web/http/request_record.py)"""
    cache_key: bytes | None = None
    cache_ttl: int | None = None
    lane: int = Lane.DEFAULT
    items: bytes
    """the input as a JSON array"""
    last: int
    """the number of the last opening event"""
    frames: bytes
    """the opening events"""
    key_id: str | None = None
    """of the key that sealed `sealed`; None: there are no secrets"""
    sealed: bytes | None = None
    key: str | None = None
    """what identifies a repeat of the request; None: nothing does"""
    body_hash: bytes | None = None
    key_seconds: int | None = None
    """for how long `key` is kept"""
    api_key: UUID | None = None
    """the id of the key of the request that makes it"""
    retention: int | None = None
    """for how many seconds it is kept after its creation; None: as the settings say"""
    kept_for: int | None = None
    """for how many seconds it is kept after its end; None: until the retention ends"""
    ends_in: int | None = None
    """in how many seconds its completion window ends; None: it has none"""
    urgent_in: int | None = None
    """in how many seconds it waits as `default` does; None: as its lane says"""
    continuation: str | None = None
    """the thread that it belongs to; only for background responses"""

    @property
    def has_options(self) -> bool:
        """Whether INSERT cannot store it (INSERT_WITH_OPTIONS)."""
        return (
            self.ends_in is not None or self.urgent_in is not None or self.continuation is not None
        )

    @property
    def size(self) -> int:
        """Bytes of what is stored, about."""
        return len(self.parameters) + len(self.items) + len(self.frames) + len(self.sealed or b"")


def insert_values(
    rows: Sequence[NewRow],
    web: UUID | None,
    retention: timedelta,
    queue_wait: timedelta,
    lead: timedelta | None = timedelta(0),
) -> dict[str, object]:
    """The values of the statements INSERT… for these responses.

    `web`: the process that stores them. `retention`: how long a stored response is kept, unless its
    project has a retention of its own.
    `queue_wait`: how long it may wait for a worker. `lead`: so much earlier a follow-up counts as
    come; None: for INSERT, which stores none.
    """
    values: dict[str, object] = {
        "web": web,
        "default_retention": retention,
        "queue_wait": queue_wait,
    }
    _add_arrays(values, rows, _COLUMNS, _to_columns)
    if lead is not None:
        values["lead"] = lead
        _add_arrays(values, rows, _OPTIONS, _to_options)
    return values


_to_columns = attrgetter(*_COLUMNS)
_to_options = attrgetter(*_OPTIONS)


def _add_arrays(
    values: dict[str, object],
    rows: Sequence[NewRow],
    kinds: Mapping[str, str],
    to_columns: Callable[[NewRow], tuple[object, ...]],
) -> None:
    columns = zip(*map(to_columns, rows), strict=True)
    for (name, kind), column_values in zip(kinds.items(), columns, strict=True):
        is_null = column_values.count(None) == len(rows)
        values[name] = _nulls(kind, len(rows)) if is_null else _ARRAYS[kind](column_values)


@lru_cache(1024)
def _nulls(kind: str, length: int) -> object:
    """An array of nulls: half of the columns of most creates."""
    return _ARRAYS[kind]([None] * length)


def _new(columns: Mapping[str, str]) -> str:
    return f"""new AS MATERIALIZED (
             SELECT * FROM unnest({", ".join(array(name, kind) for name, kind in columns.items())})
                 AS n ({", ".join(columns)}))"""


_OPTION_COLUMNS = ", window_ends_at, urgent_at, continuation_id, resume_at"


def _option_values(source: str) -> str:
    """The values of _OPTION_COLUMNS. A follow-up of what has begun within the last hour, so that a
    cache of its beginning may still be warm, has its place before it came."""
    is_follow_up = f"""EXISTS (SELECT 1 FROM responses w WHERE w.project_id = {source}.project
                             AND w.continuation_id = {source}.continuation
                             AND w.started_at > clock_timestamp() - interval '1 hour')"""
    return f""", clock_timestamp() + make_interval(secs => ends_in),
                        clock_timestamp() + make_interval(secs => urgent_in), continuation,
                        CASE WHEN continuation IS NOT NULL AND {is_follow_up}
                            THEN clock_timestamp() - CAST(:lead AS interval) END"""


def _insert_key(source: str, on_conflict: str = "") -> str:
    return f"""
         key AS (INSERT INTO idempotency_keys AS k (project_id, key, body_hash, response_id, expires_at)
                 SELECT project, key, body_hash, id, clock_timestamp() + make_interval(secs => key_seconds)
                 FROM {source} WHERE key IS NOT NULL {on_conflict}
                 RETURNING response_id)"""


_REPLACE_STALE_KEY = f"""
                 ON CONFLICT (project_id, key) DO UPDATE
                 SET body_hash = excluded.body_hash, response_id = excluded.response_id,
                     expires_at = excluded.expires_at, claim = NULL, made = NULL, sealed = NULL,
                     lost = false WHERE {KEY_IS_STALE}"""
_WITH_KEY = "keyed AS (SELECT new.* FROM new JOIN key ON key.response_id = new.id)"
_IN_CONVERSATION = """
         joined AS (UPDATE conversations c SET revision = c.revision + 1 FROM new
                    WHERE c.id = new.conversation AND c.project_id = new.project AND c.revision = new.revision
                    RETURNING c.id),
         in_conversation AS (SELECT new.* FROM new JOIN joined ON joined.id = new.conversation)"""


def _insert(*conditions: str, source: str = "new", options: bool = True) -> Query[UUID]:
    """Inserts the responses of `source`, which is `new` or one of the CTEs `conditions`. `options`:
    with the columns _OPTIONS."""
    queue_wait = "CAST(:queue_wait AS interval)"
    if options:
        # a response may wait until its window ends
        window = "make_interval(secs => ends_in) + interval '1 hour'"
        queue_wait = f"greatest({queue_wait}, {window})"
    return column(
        f"""
    WITH {", ".join((_new(_COLUMNS | _OPTIONS if options else _COLUMNS), *conditions))},
         row AS (INSERT INTO responses (id, project_id, status, background, store, model, parameters,
                                        previous_response_id,
                                        conversation_id, created_at, expires_at, deadline, enqueued_at, web, waiter,
                                        traceparent, request_id, cache_key, cache_ttl,
                                        api_key_id, kept_for, lane{_OPTION_COLUMNS if options else ""})
                 SELECT id, project, 'queued', background, store, model, CAST(parameters AS json), previous,
                        conversation, to_timestamp(created_at),
                        clock_timestamp() + coalesce(make_interval(secs => retention),
                                                     CAST(:default_retention AS interval)),
                        clock_timestamp() + {queue_wait}, clock_timestamp(), :web, waiter, traceparent,
                        request_id, cache_key, cache_ttl,
                        api_key, make_interval(secs => kept_for), lane{_option_values(source) if options else ""}
                 FROM {source}
                 RETURNING id),
         stored AS ({insert_items(source, response=f"{source}.id", items=f"{source}.items")}),
         logged AS ({INSERT_INTO_LOG} SELECT id, 0, last, 0, frames FROM {source}),
         secrets AS (INSERT INTO job_secrets (response_id, key_id, sealed) SELECT id, key_id, sealed FROM {source}
                     WHERE key_id IS NOT NULL)
    SELECT id FROM row
""",
        UUID,
    )


INSERT = _insert(_insert_key("new"), options=False)
"""Inserts responses, each with its input, its secrets, its first events, and its key if it has one;
all of them or none. `deadline` limits the time in the queue until a claim replaces it with the
deadline of the run.

It is for responses that no other request can refuse: none is in a conversation, and a key is that
of an SDK's request, which no other response has, and none has options (`NewRow.has_options`)."""
INSERT_WITH_OPTIONS = _insert(_insert_key("new"))
"""INSERT of responses of which some have options. It is one of its own, so that the others pay
nothing for them."""
INSERT_WITH_KEY = _insert(_insert_key("new", _REPLACE_STALE_KEY), _WITH_KEY, source="keyed")
"""INSERT_WITH_OPTIONS of one response on condition that no other request holds its key. No row: another request
holds it (JOIN_BY_KEY)."""
INSERT_IN_CONVERSATION = _insert(
    _IN_CONVERSATION, _insert_key("in_conversation"), source="in_conversation"
)
"""INSERT_WITH_OPTIONS of one response on condition that its conversation still has the `revision` that the
request was checked against. No row: it has another one (models/db/queries/conversations.py)."""
INSERT_IN_CONVERSATION_WITH_KEY = _insert(
    _IN_CONVERSATION,
    _insert_key("in_conversation", _REPLACE_STALE_KEY),
    _WITH_KEY,
    source="keyed",
)
"""INSERT_IN_CONVERSATION and INSERT_WITH_KEY in one. No row: the conversation has another revision,
or another request holds the key."""


NOTE_RETRY = Statement("UPDATE responses SET retried_by = :new WHERE id = :id")
"""Records, in the transaction that stores the response `new`, that it runs the response `id`
again."""


def _joined(source: str, condition: str) -> str:
    """CTEs that give the response of `source`, which has at most one row, to the connection `waiter`
    of the web process `web`. The row is selected by its id: a join might read all open responses.

    A response that has ended changes no more. A foreground response must be one that is not about to
    be cancelled: no cancel is recorded, and the web process of its last connection is not dead. The
    lock on that process's row makes the join and a reap exclude each other.
    """
    return f"""
     live_web AS MATERIALIZED (SELECT w.id FROM workers w JOIN {source} s ON s.web = w.id
                               WHERE NOT w.dead FOR KEY SHARE OF w),
     joined AS (UPDATE responses r SET web = :web, waiter = :waiter FROM {source} s
                WHERE r.id = (SELECT response_id FROM {source}) AND r.delete_requested_at IS NULL AND {condition}
                  AND (r.background OR r.status NOT IN {OPEN} OR r.cancel_requested_at IS NULL
                       AND r.web IN (SELECT id FROM live_web))
                RETURNING r.id)"""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The response that an idempotency key stands for."""

    response_id: UUID | None
    """null: another create than that of a response has the key"""
    is_equal: bool
    """the request that made it had the same body"""
    is_open: bool | None
    """the response has not ended"""
    is_joined: bool
    """the response has not ended, and its answer is now for this connection"""


JOIN_BY_KEY = Query(
    f"""
    WITH holder AS MATERIALIZED (
             SELECT k.response_id, k.body_hash = CAST(:body_hash AS bytea) AS is_equal,
                    r.status IN {OPEN} AS is_open, r.web
             FROM idempotency_keys k LEFT JOIN responses r ON r.id = k.response_id
             WHERE k.project_id = :project AND k.key = :key AND NOT {KEY_IS_STALE}),
         {_joined("holder", f"s.is_equal AND r.status IN {OPEN}")}
    SELECT holder.response_id, holder.is_equal, holder.is_open, joined.id IS NOT NULL AS is_joined FROM holder
    LEFT JOIN joined ON true
    """,
    KeyHolder,
)
"""Selects the response of an idempotency key, and makes the connection `waiter` the one that waits
for it, if it is open. The connection that waited before cancels nothing any more when it ends, and
a voiding of its create has no effect. No row: there is no such key, or its response is no answer to
a retry. Open but not joined: it has changed meanwhile, so the statement is to be repeated."""

_CONNECTION_ENDED = (
    f"(r.waiter IS NULL OR r.waiter = :waiter OR r.web <> :web AND {process_ended('r.web')})"
)
"""No client waits for response `r` any more: its web process noticed that, or this connection has
joined it already, or its web process has ended."""

JOIN_UNANSWERED = column(
    f"""
    WITH unanswered AS MATERIALIZED (
             SELECT r.id AS response_id, r.web FROM idempotency_keys k JOIN responses r ON r.id = k.response_id
             WHERE k.project_id = :project AND k.body_hash = CAST(:body_hash AS bytea) AND k.key LIKE 'sdk:%'
               AND NOT {KEY_IS_STALE}
               AND {_CONNECTION_ENDED}
             ORDER BY r.id LIMIT 1 FOR NO KEY UPDATE OF r),
         {_joined("unanswered", "true")}
    SELECT id FROM joined
    """,
    UUID,
)
"""For a retry of an official SDK, which has no key: takes over a response that an equal request of
an SDK made and that no client was answered for, because the connection or its web process ended.
No row: there is none.

Each retry takes another one: the second waits for the lock of the first, and then reads the row
again. It waits for a worker's lock too. A locked row that was skipped would be run a second time,
because the worker claims and ends responses while their clients repeat the request."""
VOID_UNCLEAR_CREATES = column(
    """
    INSERT INTO responses (id, project_id, status, background, store, model, parameters, created_at, completed_at,
                           expires_at, deadline,
                           enqueued_at, reason, delete_requested_at)
    SELECT u.id, u.project, 'cancelled', true, true, '', '{}', clock_timestamp(), clock_timestamp(),
           clock_timestamp() + interval '1 hour',
           clock_timestamp(), clock_timestamp(), 'create_refused', clock_timestamp()
    FROM unnest(CAST(:ids AS uuid[]), CAST(:projects AS uuid[])) AS u (id, project) ORDER BY u.id
    ON CONFLICT (id) DO UPDATE SET status = 'cancelled', completed_at = clock_timestamp(), reason = 'create_refused',
                                   delete_requested_at = clock_timestamp(),
                                   expires_at = clock_timestamp() + interval '1 hour'
        WHERE responses.worker IS NULL AND responses.status = 'queued' AND responses.web = :web
    RETURNING id
    """,
    UUID,
)
"""Makes sure that creates of the web process `web`, which have an unclear outcome and were answered
with 503, never run (I9).

For each id it waits for the transaction that inserts it, if that is still open. Then it cancels the
row, or it inserts a cancelled row whose id the create cannot use any more, however late it arrives.
An id that is not returned: a retry at another web process was answered with this response and has
taken it over, or it has ended, or a worker has claimed it because this web process was dead. May be
repeated."""

DELETE_VOIDED_SECRETS = Statement("""
    DELETE FROM job_secrets s USING responses r
    WHERE s.response_id = ANY(CAST(:ids AS uuid[])) AND r.id = s.response_id AND r.reason = 'create_refused'
""")
"""Deletes the secrets after VOID_UNCLEAR_CREATES. It is a second statement because the snapshot of
the first is older than the rows of the creates' transactions."""
