"""How long rows are kept, and how they are deleted."""

from uuid import UUID

from models.db.queries.common import ENDED, OPEN
from models.db.statement import Statement, column

EXTEND_UNSTORED = column(
    "UPDATE responses SET expires_at = clock_timestamp() + CAST(:lifetime AS interval) WHERE id = ANY(:ids) AND NOT store RETURNING id",
    UUID,
)
"""Sets how long the unstored responses `ids` are kept: for as long as the connection that made them
may continue them, and once it is closed, for no time at all."""

_DETACH_ITEMS = """
    conversation_items AS MATERIALIZED (
        SELECT i.id, c.turn, c.answer FROM old JOIN items i ON i.response_id = old.id AND i.conversation_id IS NOT NULL
        LEFT JOIN tool_calls c ON c.response_id = i.response_id AND i.direction = 'output' AND c.position = i.position
        ORDER BY i.id FOR UPDATE OF i
    ),
    detached AS (UPDATE items i SET response_id = NULL, turn = conversation_items.turn, answer = conversation_items.answer
                 FROM conversation_items WHERE i.id = conversation_items.id)"""
"""Before the responses in `old` are deleted: items that are part of a conversation stay in it. The
others are deleted with their response."""

DELETE_ENDED = column(
    f"""
    WITH old AS MATERIALIZED (SELECT id FROM responses WHERE id = :id AND project_id = :project AND status IN {ENDED} FOR UPDATE), {_DETACH_ITEMS}
    DELETE FROM responses USING old WHERE responses.id = old.id RETURNING responses.id
    """,
    UUID,
)
"""Deletes a response with its items and its log. No row: it has not ended; PURGE deletes it
later."""

PURGE = column(
    f"""
    WITH old AS MATERIALIZED (
        SELECT r.id FROM responses r WHERE r.status IN {ENDED} AND (r.expires_at < clock_timestamp() OR r.delete_requested_at IS NOT NULL)
          AND (r.delete_requested_at IS NOT NULL OR NOT EXISTS (SELECT 1 FROM responses c WHERE c.previous_response_id = r.id))
          AND (r.reason IS DISTINCT FROM 'create_refused' OR r.expires_at < clock_timestamp())
        ORDER BY r.expires_at LIMIT 100 FOR UPDATE OF r SKIP LOCKED
    ), {_DETACH_ITEMS}
    DELETE FROM responses USING old WHERE responses.id = old.id RETURNING responses.id
    """,
    UUID,
)
"""Deletes up to 100 responses that have expired or were deleted by a client, with their items and
logs. An expired response that another one continues is kept: it is part of that one's history.
Items of a conversation stay in it; a conversation does not expire."""

DELETE_OLD_WORKERS = Statement(f"""
    WITH deleted AS (DELETE FROM workers w WHERE w.dead AND w.expires_at < clock_timestamp() - interval '1 hour'
                     AND NOT EXISTS (SELECT 1 FROM responses r WHERE r.worker = w.id)
                     AND NOT EXISTS (SELECT 1 FROM responses r WHERE r.web = w.id AND r.status IN {OPEN}) RETURNING w.id)
    DELETE FROM journal j USING deleted WHERE j.worker = deleted.id
""")
"""Deletes the rows and journals of processes that died more than an hour ago and that no response
names any more."""
DELETE_EXPIRED_KEYS = Statement("DELETE FROM idempotency_keys WHERE expires_at < clock_timestamp()")
