"""What is sealed in the database, for a change of the sealing key (`backburner secrets rotate`).

Each update is of one row and a transaction of its own, so it waits for no other row and stops no
worker for longer than a moment. It has an effect only on what was read.
"""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.common import sql_list
from models.db.statement import Query, column

SEALED_ITEMS = ("compaction", "reasoning")
"""Types of items whose `encrypted_content` is a token of this deployment, of a kind of this name."""


@dataclass(frozen=True, slots=True)
class SealedRow:
    """Secrets of a response, an endpoint or a schedule, to which they are bound."""

    id: UUID
    key_id: str
    sealed: bytes


CREDENTIALS = Query(
    """
    SELECT response_id AS id, key_id, sealed FROM job_secrets
    WHERE key_id <> :key_id AND (CAST(:after AS uuid) IS NULL OR response_id > CAST(:after AS uuid))
    ORDER BY response_id LIMIT :max_rows
    """,
    SealedRow,
)
"""Selects credentials of open responses that are sealed with another key than this one."""
RESEAL_CREDENTIALS = column(
    """
    UPDATE job_secrets SET key_id = :key_id, sealed = :sealed
    WHERE response_id = :id AND key_id = :old_key_id AND sealed = :old_sealed RETURNING response_id
    """,
    UUID,
)
ENDPOINTS = Query(
    """
    SELECT id, secret_key_id AS key_id, secrets AS sealed FROM webhook_endpoints
    WHERE secret_key_id <> :key_id AND deleted_at IS NULL
      AND (CAST(:after AS uuid) IS NULL OR id > CAST(:after AS uuid))
    ORDER BY id LIMIT :max_rows
    """,
    SealedRow,
)
"""The same for signing secrets of webhooks."""
RESEAL_ENDPOINT = column(
    """
    UPDATE webhook_endpoints SET secret_key_id = :key_id, secrets = :sealed
    WHERE id = :id AND secret_key_id = :old_key_id AND secrets = :old_sealed RETURNING id
    """,
    UUID,
)

SCHEDULES = Query(
    """
    SELECT id, secret_key_id AS key_id, secrets AS sealed FROM schedules
    WHERE secret_key_id <> :key_id AND (CAST(:after AS uuid) IS NULL OR id > CAST(:after AS uuid))
    ORDER BY id LIMIT :max_rows
    """,
    SealedRow,
)
"""The same for credentials in templates of schedules."""
RESEAL_SCHEDULE = column(
    """
    UPDATE schedules SET secret_key_id = :key_id, secrets = :sealed
    WHERE id = :id AND secret_key_id = :old_key_id AND secrets = :old_sealed RETURNING id
    """,
    UUID,
)

LAST_ITEM = column("SELECT coalesce(max(id), 0) AS last FROM items", int)


@dataclass(frozen=True, slots=True)
class SealedItem:
    """An item with a token of this kind."""

    id: int
    type: str
    project_id: UUID
    token: str


ITEMS = Query(
    f"""
    SELECT i.id, i.type, coalesce(r.project_id, c.project_id) AS project_id, i.payload->>'encrypted_content' AS token
    FROM items i LEFT JOIN responses r ON r.id = i.response_id LEFT JOIN conversations c ON c.id = i.conversation_id
    WHERE i.id > :after AND i.id <= :last AND i.type IN {sql_list(SEALED_ITEMS)}
      AND starts_with(i.payload->>'encrypted_content', CAST(:prefix AS text))
        AND NOT starts_with(i.payload->>'encrypted_content', CAST(:own_prefix AS text))
    ORDER BY i.id
    """,
    SealedItem,
)
"""Selects the items of a range of ids whose tokens are not sealed with the key of `own_prefix`."""
RESEAL_ITEM = column(
    """
    UPDATE items SET payload = jsonb_set(payload, '{encrypted_content}', to_jsonb(CAST(:token AS text)))
    WHERE id = :id AND payload->>'encrypted_content' = :old_token RETURNING id
    """,
    int,
)

ORIGINS = Query(
    """
    SELECT i.id, 'call' AS type, coalesce(r.project_id, c.project_id) AS project_id, i.origin AS token
    FROM items i LEFT JOIN responses r ON r.id = i.response_id LEFT JOIN conversations c ON c.id = i.conversation_id
    WHERE i.id > :after AND i.id <= :last AND starts_with(i.origin, CAST(:prefix AS text))
      AND NOT starts_with(i.origin, CAST(:own_prefix AS text))
    ORDER BY i.id
    """,
    SealedItem,
)
"""The same for the origins of tool calls."""
RESEAL_ORIGIN = column(
    "UPDATE items SET origin = :token WHERE id = :id AND origin = :old_token RETURNING id", int
)
