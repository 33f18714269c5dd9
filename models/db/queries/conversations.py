"""The statements of conversations (design §3): every one by project (I11).

A conversation has a `revision`, one higher after everything that is said or begun in it. Whoever wants to write reads it first, with
what must be true (`READ`), and writes on condition that it is still the same; no row means that somebody was faster: read again. So
each write is one statement, and what was checked is what is written to. A create raises it too (`statements.JOIN`), and so does an end
that adds to it (`statements.END`). While a response of the conversation is open nobody else adds or takes away, so every attempt of it
reads the same history; the partial unique index on `responses` stands behind that.

An item belongs to a response, to a conversation, or to both, and is stored once. It leaves one without leaving the other; what then
belongs to nothing is deleted. Locks are taken in the order response or conversation, then items (by id); an end, which needs all three,
is alone with its items, because they are not yet the conversation's.
"""

from typing import LiteralString

from sqlalchemy import text

from models.db.database import compile_statement
from models.lifecycle import TRANSITIONS

_OPEN = ", ".join(f"'{status}'" for status in sorted(TRANSITIONS))
_COLUMNS = "c.id, c.metadata, floor(extract(epoch FROM c.created_at))::bigint AS created_at"
_AT_REVISION = "id = :id AND project_id = :project AND revision = CAST(:revision AS bigint)"


def _sql(statement: str) -> LiteralString:
    return compile_statement(text(statement))


def _insert_items(source: str) -> str:
    return f"""
    kept AS (INSERT INTO items (conversation_id, direction, position, item_id, type, payload)
             SELECT {source}.id, 'input', e.nr - 1, e.value ->> 'id', e.value ->> 'type', e.value
             FROM {source} CROSS JOIN jsonb_array_elements(CAST(:items AS jsonb)) WITH ORDINALITY AS e (value, nr) ORDER BY e.nr)"""


CREATE = _sql(f"""
    WITH made AS (INSERT INTO conversations (id, project_id, created_at, metadata, unanswered_calls)
                  VALUES (:id, :project, to_timestamp(:created_at), :metadata, :unanswered_calls) ON CONFLICT DO NOTHING RETURNING id),
    {_insert_items("made")}
    SELECT id FROM made
""")
"""A conversation and its first items. It may come twice: the second time it does nothing."""

READ = _sql(f"""
    SELECT {_COLUMNS}, c.revision, c.unanswered_calls,
           EXISTS (SELECT 1 FROM responses r WHERE r.conversation_id = c.id AND r.status IN ({_OPEN})) AS is_busy,
           ARRAY(SELECT i.item_id FROM items i WHERE i.conversation_id = c.id AND i.item_id = ANY(CAST(:item_ids AS text[]))) AS taken
    FROM conversations c WHERE c.id = :id AND c.project_id = :project
""")
"""What must be known before anything is written to it. `taken`: which of these items it has."""

UPDATE = _sql(
    f"UPDATE conversations c SET metadata = :metadata WHERE c.id = :id AND c.project_id = :project RETURNING {_COLUMNS}"
)

ADD_ITEMS = _sql(f"""
    WITH joined AS (UPDATE conversations SET revision = revision + 1, unanswered_calls = :unanswered_calls WHERE {_AT_REVISION} RETURNING id),
    {_insert_items("joined")}
    SELECT id FROM joined
""")
"""Items that come from the client itself. No row: it has moved on."""

REMOVE_ITEM = _sql(f"""
    WITH held AS (UPDATE conversations SET revision = revision + 1, unanswered_calls = :unanswered_calls WHERE {_AT_REVISION} RETURNING id),
         freed AS (UPDATE items i SET conversation_id = NULL FROM held
                   WHERE i.conversation_id = held.id AND i.item_id = :item AND i.response_id IS NOT NULL RETURNING i.id),
         gone AS (DELETE FROM items i USING held
                  WHERE i.conversation_id = held.id AND i.item_id = :item AND i.response_id IS NULL RETURNING i.id)
    SELECT id FROM freed UNION ALL SELECT id FROM gone
""")
"""Takes an item out of it; a response keeps what is its own. No row: it has moved on, or the item just lost its response."""

DELETE = _sql(f"""
    WITH held AS (SELECT id FROM conversations WHERE {_AT_REVISION} FOR UPDATE),
         of_responses AS MATERIALIZED (SELECT i.id FROM held JOIN items i ON i.conversation_id = held.id AND i.response_id IS NOT NULL
                                       ORDER BY i.id FOR UPDATE OF i),
         freed AS (UPDATE items i SET conversation_id = NULL FROM of_responses WHERE i.id = of_responses.id)
    DELETE FROM conversations USING held WHERE conversations.id = held.id RETURNING conversations.id
""")
"""The conversation, and the items that only it has. No row: it has moved on."""

PAGE = {
    order: _sql(f"""
        SELECT i.payload FROM items i WHERE i.conversation_id = :id
        AND (CAST(:after AS text) IS NULL OR i.id {comparison}
             (SELECT a.id FROM items a WHERE a.conversation_id = :id AND a.item_id = :after LIMIT 1))
        ORDER BY i.id {order} LIMIT :limit
    """)
    for order, comparison in (("asc", ">"), ("desc", "<"))
}
ITEM = _sql(
    "SELECT i.payload FROM items i WHERE i.conversation_id = :id AND i.item_id = :item LIMIT 1"
)

CALLS = _sql("""
    SELECT i.item_id AS id, i.type, i.payload ->> 'call_id' AS call_id, i.payload ->> 'status' AS status
    FROM items i WHERE i.conversation_id = :id AND i.type = ANY(CAST(:types AS text[])) AND i.payload ? 'call_id' ORDER BY i.id
""")
"""Its calls and their outputs, in order, without what they say."""

APPROVAL_REQUESTS = _sql("""
    SELECT i.item_id AS id, i.payload ->> 'server_label' AS server_label FROM items i
    WHERE i.conversation_id = :id AND i.type = 'mcp_approval_request' AND i.item_id = ANY(CAST(:ids AS text[]))
""")
"""Those of the approval requests that it holds."""
