"""The statements of conversations: each is limited to one project (I11).

A conversation has a `revision`, which rises by one with every item that is added and every response
that is started in it. A writer first reads the conversation (`READ`) and checks what must be true,
and then writes on condition that the revision is still the same. No row means that another request
was faster: read again. So each write is one statement, and it changes what was checked. A create
also raises the revision (create.INSERT_IN_CONVERSATION), and so does an ending that adds items
(end.END). While a response of the conversation is open, nothing else adds or removes items, so
every attempt of that response reads the same history. A partial unique index on `responses`
guarantees that.

An item belongs to a response, to a conversation, or to both, and is stored once. It can leave one
without leaving the other. What then belongs to nothing is deleted. Locks are taken in this order:
response or conversation, then items by id. An ending needs all three, but no other transaction can
lock its items: they are not part of the conversation yet.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.db.queries.audit import recorded
from models.db.queries.common import OPEN, PagedItem, insert_items, item_pages
from models.db.statement import Query, column

_COLUMNS = "c.id, c.metadata, floor(extract(epoch FROM c.created_at))::bigint AS created_at"
_AT_REVISION = "id = :id AND project_id = :project AND revision = CAST(:revision AS bigint)"

CREATE = column(
    f"""
    WITH created AS (INSERT INTO conversations (id, project_id, created_at, metadata, unanswered_calls, size)
                     VALUES (:id, :project, to_timestamp(:created_at), :metadata, :unanswered_calls,
                             CAST(:size AS bigint)) ON CONFLICT DO NOTHING RETURNING id),
    stored AS ({insert_items("created", conversation="created.id")})
    SELECT id FROM created
    """,
    UUID,
)
"""Inserts a conversation and its first items. No row: an earlier try has done it."""


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """A conversation, and what must be known before anything is written to it."""

    id: UUID
    metadata: dict[str, str]
    created_at: int
    """whole seconds since the epoch"""
    revision: int
    unanswered_calls: list[str]
    """ids of the calls that must be answered next"""
    size: int
    """of its items (models/wire/json_input.py)"""
    is_busy: bool
    """a response of it is open"""
    existing_item_ids: list[str]
    """those of the asked-for item ids that it has"""


READ = Query(
    f"""
    SELECT {_COLUMNS}, c.revision, c.unanswered_calls, c.size,
           EXISTS (SELECT 1 FROM responses r WHERE r.conversation_id = c.id AND r.status IN {OPEN}) AS is_busy,
           ARRAY(SELECT i.item_id FROM items i WHERE i.conversation_id = c.id
                 AND i.item_id = ANY(CAST(:item_ids AS text[]))) AS existing_item_ids
    FROM conversations c WHERE c.id = :id AND c.project_id = :project
    """,
    ConversationRow,
)
"""Selects a conversation. No row: it was deleted, or it belongs to another project."""


@dataclass(frozen=True, slots=True)
class UpdatedConversation:
    """A conversation with its new metadata. `created_at`: whole seconds since the epoch."""

    id: UUID
    metadata: dict[str, Any]
    created_at: int


UPDATE = Query(
    f"""
    UPDATE conversations c SET metadata = :metadata WHERE c.id = :id AND c.project_id = :project RETURNING {_COLUMNS}
    """,
    UpdatedConversation,
)
"""Replaces the metadata. No row: the conversation was deleted."""

ADD_ITEMS = column(
    f"""
    WITH joined AS (UPDATE conversations SET revision = revision + 1, unanswered_calls = :unanswered_calls,
                           size = size + CAST(:size AS bigint)
                    WHERE {_AT_REVISION} RETURNING id),
    stored AS ({insert_items("joined", conversation="joined.id")})
    SELECT id FROM joined
    """,
    UUID,
)
"""Adds items that the client sent. No row: the conversation has another revision."""

REMOVE_ITEM = column(
    f"""
    WITH locked AS (UPDATE conversations c SET revision = revision + 1, unanswered_calls = :unanswered_calls,
                           size = greatest(0,
                                           c.size - coalesce((SELECT i.size FROM items i
                                                              WHERE i.conversation_id = c.id AND i.item_id = :item
                                                                  LIMIT 1), 0))
                    WHERE {_AT_REVISION} RETURNING id),
         detached AS (UPDATE items i SET conversation_id = NULL FROM locked
                      WHERE i.conversation_id = locked.id AND i.item_id = :item AND i.response_id IS NOT NULL
                      RETURNING i.id),
         deleted AS (DELETE FROM items i USING locked
                     WHERE i.conversation_id = locked.id AND i.item_id = :item AND i.response_id IS NULL
                     RETURNING i.id),
         audited AS ({recorded("(SELECT id FROM detached UNION ALL SELECT id FROM deleted) removed")})
    SELECT id FROM detached UNION ALL SELECT id FROM deleted
    """,
    int,
)
"""Removes an item from the conversation, and adds the entry to the audit log; an item of a response
stays with the response. No row: the conversation has another revision, or the item's response was
deleted at the same moment."""

DELETE = column(
    f"""
    WITH locked AS (SELECT id FROM conversations WHERE {_AT_REVISION} FOR UPDATE),
         of_responses AS MATERIALIZED (SELECT i.id FROM locked
                                       JOIN items i ON i.conversation_id = locked.id AND i.response_id IS NOT NULL
                                       ORDER BY i.id FOR UPDATE OF i),
         detached AS (UPDATE items i SET conversation_id = NULL FROM of_responses WHERE i.id = of_responses.id),
         deleted AS (DELETE FROM conversations USING locked WHERE conversations.id = locked.id
                     RETURNING conversations.id),
         audited AS ({recorded("deleted")})
    SELECT id FROM deleted
    """,
    UUID,
)
"""Deletes the conversation and the items that belong to no response, and adds the entry to the
audit log. No row: it has another revision."""

PAGE = item_pages("{item}.conversation_id = :id", "id")
"""Pages of a conversation's items."""
ITEM = Query(
    """
    SELECT CASE WHEN i.size <= CAST(:max_size AS bigint) THEN i.payload END AS payload, i.size::bigint AS total,
           i.item_id AS id
    FROM items i WHERE i.conversation_id = :id AND i.item_id = :item LIMIT 1
    """,
    PagedItem,
)
"""Selects an item of the conversation, without its payload if that is larger than `max_size`. No
row: it has none of that id."""


@dataclass(frozen=True, slots=True)
class CallItem:
    """A tool call or a call's output, without its content."""

    id: str
    type: str
    call_id: str
    status: str | None


CALLS = Query(
    """
    SELECT i.item_id AS id, i.type, i.payload ->> 'call_id' AS call_id, i.payload ->> 'status' AS status
    FROM items i WHERE i.conversation_id = :id AND i.type = ANY(CAST(:types AS text[]))
      AND i.payload ->> 'call_id' = (SELECT named.payload ->> 'call_id' FROM items named
                                     WHERE named.conversation_id = :id AND named.item_id = :item LIMIT 1)
    ORDER BY i.id
    """,
    CallItem,
)
"""Selects the calls and outputs of a conversation that have the `call_id` of `item`, in order."""
