"""Storing a new response: its row, input, secrets and first events, and the key of its request."""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.common import INSERT_INTO_LOG, insert_items
from models.db.statement import Query, Statement, column

_KEY_IS_STALE = """(k.expires_at < clock_timestamp() OR EXISTS (
                SELECT 1 FROM responses r WHERE r.id = k.response_id AND (r.delete_requested_at IS NOT NULL OR r.reason = 'create_refused'
                OR (NOT r.background AND (r.status = 'cancelled' OR r.cancel_requested_at IS NOT NULL)))))"""
"""A key whose response is no answer to a retry: the key has expired, or the response was deleted,
was answered with 503, or was cancelled because its client had disconnected."""


def _insert_key(source: str = "") -> str:
    return f"""
    key AS (INSERT INTO idempotency_keys AS k (project_id, key, body_hash, response_id, expires_at)
            SELECT :project, :key, CAST(:body_hash AS bytea), :id, clock_timestamp() + CAST(:lifetime AS interval) {source}
            ON CONFLICT (project_id, key) DO UPDATE
            SET body_hash = excluded.body_hash, response_id = excluded.response_id, expires_at = excluded.expires_at
            WHERE :replaces OR {_KEY_IS_STALE}
            RETURNING 1),"""


_BUMP_REVISION = """
    joined AS (UPDATE conversations SET revision = revision + 1
               WHERE id = :conversation AND project_id = :project AND revision = CAST(:revision AS bigint) RETURNING id),"""


def _insert(first: str = "", source: str = "") -> str:
    return f"""
    WITH {first}
         row AS (INSERT INTO responses (id, project_id, status, background, store, model, parameters, previous_response_id,
                                        conversation_id, created_at, expires_at, deadline, enqueued_at, web, traceparent, cache_key, cache_ttl)
                 SELECT :id, :project, 'queued', :background, :store, :model, :parameters, :previous,
                        CAST(:conversation AS uuid), to_timestamp(:created_at), to_timestamp(:created_at) + CAST(:retention AS interval),
                        to_timestamp(:created_at) + CAST(:queue_wait AS interval), clock_timestamp(), :web, :traceparent, CAST(:cache_key AS bytea),
                        CAST(:cache_ttl AS int) {source}
                 RETURNING id),
         stored AS ({insert_items("row", response="row.id")}),
         logged AS ({INSERT_INTO_LOG} SELECT row.id, 0, :last, 0, CAST(:frames AS bytea) FROM row),
         sealed AS (INSERT INTO job_secrets (response_id, key_id, sealed)
                    SELECT row.id, CAST(:key_id AS text), CAST(:sealed AS bytea) FROM row WHERE CAST(:key_id AS text) IS NOT NULL)
    SELECT id FROM row
"""


INSERT = column(_insert(), UUID)
"""Inserts a response with its input, its secrets and its first events. `deadline` limits the time
in the queue until a claim replaces it with the deadline of the run."""
INSERT_WITH_KEY = column(_insert(_insert_key(), "FROM key"), UUID)
"""INSERT together with the idempotency key of its request. No row: another request holds the key
(IDEMPOTENCY_KEY_HOLDER)."""
INSERT_IN_CONVERSATION = column(_insert(_BUMP_REVISION, "FROM joined"), UUID)
"""INSERT on condition that the conversation still has the `revision` that the request was checked
against. No row: it has another one (models/db/queries/conversations.py)."""
INSERT_IN_CONVERSATION_WITH_KEY = column(
    _insert(_BUMP_REVISION + _insert_key("FROM joined"), "FROM key"), UUID
)
"""INSERT_IN_CONVERSATION together with the idempotency key. No row: the conversation has another
revision, or another request holds the key (FIND_IDEMPOTENCY_KEY)."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The response that an idempotency key stands for, and the hash of the request's body."""

    response_id: UUID
    body_hash: bytes


IDEMPOTENCY_KEY_HOLDER = Query(
    "SELECT response_id, body_hash FROM idempotency_keys WHERE project_id = :project AND key = :key",
    KeyHolder,
)
FIND_IDEMPOTENCY_KEY = Query(
    f"SELECT response_id, body_hash FROM idempotency_keys k WHERE project_id = :project AND key = :key AND NOT {_KEY_IS_STALE}",
    KeyHolder,
)
"""Selects the holder of a key. No row: there is none, or its response is no answer to a retry."""

DELETE_UNCLEAR_CREATE = column(
    """
    INSERT INTO responses (id, project_id, status, background, store, model, parameters, created_at, completed_at, expires_at, deadline,
                           enqueued_at, reason, delete_requested_at)
    VALUES (:id, :project, 'cancelled', true, true, '', '{}', clock_timestamp(), clock_timestamp(), clock_timestamp() + interval '1 hour',
            clock_timestamp(), clock_timestamp(), 'create_refused', clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET status = 'cancelled', completed_at = clock_timestamp(), reason = 'create_refused',
                                   delete_requested_at = clock_timestamp(), expires_at = clock_timestamp() + interval '1 hour'
        WHERE responses.worker IS NULL AND responses.status = 'queued'
    RETURNING id
    """,
    UUID,
)
"""Makes sure, before the client reads its 503, that a create with an unclear outcome never runs
(I9).

It waits for the create's transaction, if that is still open. Then it cancels the row, or inserts a
cancelled row whose id the create cannot use any more. No row: a worker has claimed the response."""

DELETE_UNCLEAR_SECRETS = Statement("""
    DELETE FROM job_secrets s USING responses r WHERE s.response_id = :id AND r.id = s.response_id AND r.reason = 'create_refused'
""")
"""Deletes the secrets after DELETE_UNCLEAR_CREATE. It is a second statement because the snapshot of
the first is older than the rows of the create's transaction."""
