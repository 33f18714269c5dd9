"""What the console's page of one response reads beside its row: who made it, what it continues, and
when its tools have answered."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from models.db.queries.common import sql_list
from models.db.statement import Query, column
from models.wire.item_types import CALLS


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a response was made."""

    key_prefix: str | None
    """the first characters of the API key; None: it was made without one, or the key is deleted"""
    key_name: str | None
    user: str | None
    """`user` of the request"""
    safety_identifier: str | None
    client_calls: int
    """calls of the client's tools in the output"""


CALLER = Query(
    f"""
    SELECT k.prefix AS key_prefix, k.name AS key_name, r.parameters ->> 'user' AS user,
           r.parameters ->> 'safety_identifier' AS safety_identifier,
           (SELECT count(*) FROM items i WHERE i.response_id = r.id AND i.direction = 'output'
            AND i.type IN {sql_list(CALLS)} AND i.payload ->> 'call_id' IS NOT NULL) AS client_calls
    FROM responses r LEFT JOIN api_keys k ON k.id = r.api_key_id WHERE r.id = :id
    """,
    Caller,
)
"""Selects the caller of a response. No row: it was deleted."""


@dataclass(frozen=True, slots=True)
class RelatedResponse:
    """A response of the same chain or conversation."""

    id: UUID
    status: str
    model: str
    created_at: datetime


CHAIN_BEFORE = Query(
    """
    WITH RECURSIVE chain AS (
        SELECT r.previous_response_id AS id, 1 AS distance FROM responses r WHERE r.id = :id
        UNION ALL
        SELECT r.previous_response_id, chain.distance + 1
        FROM chain CROSS JOIN LATERAL (SELECT * FROM responses WHERE id = chain.id OFFSET 0) r
        WHERE chain.distance < CAST(:most AS int))
    SELECT r.id, r.status, r.model, r.created_at
    FROM chain CROSS JOIN LATERAL (SELECT * FROM responses WHERE id = chain.id OFFSET 0) r
    ORDER BY chain.distance
    """,
    RelatedResponse,
)
"""Selects the responses that the response `id` continues, the nearest first, at most `most`. They
end early at one that was deleted."""

OF_CONVERSATION = Query(
    """
    SELECT r.id, r.status, r.model, r.created_at
    FROM (SELECT DISTINCT newest.response_id AS id
          FROM (SELECT i.response_id FROM items i WHERE i.conversation_id = :conversation
                ORDER BY i.id DESC LIMIT :max_items) newest) of_items
    CROSS JOIN LATERAL (SELECT * FROM responses WHERE id = of_items.id OFFSET 0) r
    ORDER BY r.id DESC
    """,
    RelatedResponse,
)
"""Selects the responses that made the newest items of a conversation, the newest first."""

FIRST_OUTPUT = column(
    """
    SELECT e.stored_at FROM event_log e
    WHERE e.response_id = :id AND e.attempt > 0 AND e.last_number > CAST(:begun AS int)
    ORDER BY e.first_number LIMIT 1
    """,
    datetime,
)
"""Selects when the first event after `begun`, the number of `response.in_progress`, was stored: about
a second after it was sent at the latest. No row: there is none."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block of the event log."""

    stored_at: datetime
    frames: bytes


BLOCKS_WITH = Query(
    """
    SELECT block.stored_at, block.frames
    FROM (SELECT e.stored_at, e.frames, e.first_number,
                 sum(octet_length(e.frames)) OVER (ORDER BY e.first_number) AS total
          FROM (SELECT * FROM event_log WHERE response_id = :id AND octet_length(frames) <= CAST(:max_block AS int)
                ORDER BY first_number LIMIT :max_blocks) e
          WHERE position(CAST(:mark AS bytea) IN e.frames) > 0) block
    WHERE block.total <= CAST(:max_bytes AS bigint) ORDER BY block.first_number
    """,
    StoredBlock,
)
"""Selects the blocks of the log of a response that contain `mark`, until all together have `max_bytes`.
It looks at the first `max_blocks` that have at most `max_block` bytes."""


@dataclass(frozen=True, slots=True)
class LargeMessage:
    """The beginning of a message that is too large to be read."""

    role: str | None
    text: str | None
    """of its first part; None: it has none, or the item is no message"""


LARGE_MESSAGE = Query(
    """
    SELECT i.payload ->> 'role' AS role, left(i.payload #>> '{content,0,text}', CAST(:characters AS int)) AS text
    FROM items i WHERE i.response_id = :id AND i.item_id = :item AND i.type = 'message'
      AND pg_column_size(i.payload) <= CAST(:max_stored AS int)
    ORDER BY i.id LIMIT 1
    """,
    LargeMessage,
)
"""Selects the beginning of a message. No row: the item is none, or takes more than `max_stored` bytes
as it is stored."""


@dataclass(frozen=True, slots=True)
class WholeItem:
    """An item for a page of its own."""

    id: str
    payload: dict[str, Any] | None
    """None: it is too large"""
    beginning: str | None
    """of its JSON, if it is too large, but not by far"""


ITEM = Query(
    """
    SELECT i.item_id AS id, CASE WHEN i.size <= CAST(:max_size AS bigint) THEN i.payload END AS payload,
           CASE WHEN i.size > CAST(:max_size AS bigint) AND pg_column_size(i.payload) <= CAST(:max_stored AS int)
               THEN left(i.payload::text, CAST(:characters AS int)) END AS beginning
    FROM items i WHERE i.response_id = :id AND i.item_id = :item ORDER BY i.id LIMIT 1
    """,
    WholeItem,
)
"""Selects an item of the input or output of a response. `max_size`: of an item that is read as a whole
(models/wire/json_input.py); `max_stored`: bytes as it is stored. No row: it has none of that id."""
