"""What comes before a response: its previous responses or its conversation, and single items of
them."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.db.queries.common import sql_list, visible_outside
from models.db.statement import Query, column
from models.wire.item_types import ADDS_TOOLS, CALLS, OUTPUTS


@dataclass(frozen=True, slots=True)
class PreviousResponse:
    """What a create must know about the response it continues."""

    id: UUID
    status: str
    unanswered_calls: list[str]
    """ids of the calls that the continuation must answer"""
    history_size: int | None
    """the size of what the continuation begins with (models/wire/json_input.py); None: not known"""
    steers: int
    """how many inputs have arrived while it ran"""


PREVIOUS_RESPONSE = Query(
    f"""
    SELECT r.id, r.status, r.unanswered_calls, r.history_size, r.steers FROM responses r
    WHERE r.id = :id AND r.project_id = :project AND (r.store OR CAST(:include_unstored AS boolean))
      AND r.delete_requested_at IS NULL AND {visible_outside("r")}
    """,
    PreviousResponse,
)
"""Selects the response behind `previous_response_id`. No row: it is deleted, belongs to another
project, is a foreground response that has not ended, or was not to be stored. Only the connection
that made an unstored response may continue it (`include_unstored`)."""


@dataclass(frozen=True, slots=True)
class ReferencedItem:
    """An item that a reference names. `payload` is None when all items are too large together."""

    id: str
    payload: dict[str, Any] | None


REFERENCED_ITEMS = Query(
    f"""
    SELECT wanted.id,
           CASE WHEN sum(octet_length(newest.payload::text)) OVER (ORDER BY wanted.nr) <= CAST(:max_bytes AS bigint)
               THEN newest.payload END AS payload
    FROM unnest(CAST(:ids AS text[])) WITH ORDINALITY AS wanted (id, nr)
    CROSS JOIN LATERAL (
        SELECT i.payload FROM items i LEFT JOIN responses r ON r.id = i.response_id
        LEFT JOIN conversations c ON c.id = i.conversation_id
        WHERE i.item_id = wanted.id AND (c.project_id = :project
           OR (r.project_id = :project AND r.store AND r.delete_requested_at IS NULL AND {visible_outside("r")}))
        ORDER BY i.id DESC LIMIT 1
    ) newest
    """,
    ReferencedItem,
)
"""Selects, for each item id, the project's newest item of that id, input or output. Clients choose
ids, so several items may have the same one. From the item on with which all together are larger
than `max_bytes`, the payload is null. An id without a row: the project has no such item."""

_CHAIN = """
    WITH RECURSIVE chain AS (
        SELECT r.id, r.previous_response_id, r.conversation_id, 0 AS depth FROM responses r WHERE r.id = :id
        UNION ALL
        SELECT r.id, r.previous_response_id, r.conversation_id, chain.depth + 1
        FROM chain JOIN responses r ON r.id = chain.previous_response_id WHERE chain.depth < 10000
    ),
    before AS (
        SELECT conversation_id, (SELECT min(i.id) FROM items i WHERE i.response_id = chain.id) AS first_item
        FROM chain WHERE previous_response_id IS NULL AND conversation_id IS NOT NULL
    )"""
"""`chain`: a response (depth 0) and those before it. `before`: the conversation of the first of
them, and the first item that did not belong to it yet when that response was made."""
_BROKEN = """broken AS (
        SELECT EXISTS (SELECT 1 FROM chain WHERE chain.previous_response_id IS NOT NULL
                       AND NOT EXISTS (SELECT 1 FROM responses p WHERE p.id = chain.previous_response_id))
            OR EXISTS (SELECT 1 FROM before WHERE NOT EXISTS (SELECT 1 FROM conversations v
                                                              WHERE v.id = before.conversation_id)) AS broken
    )"""
"""Whether a part of the history was deleted."""
_ITEMS_BEFORE = """items i ON i.conversation_id = before.conversation_id
    AND (before.first_item IS NULL OR i.id < before.first_item)"""
_TOOL_CALL_OF_ITEM = """LEFT JOIN tool_calls c ON c.response_id = i.response_id AND i.direction = 'output'
    AND c.position = i.position"""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """An `mcp_approval_request` item and the label of its server."""

    id: str
    server_label: str


APPROVAL_REQUESTS = Query(
    f"""{_CHAIN}
    SELECT i.item_id AS id, i.payload ->> 'server_label' AS server_label
    FROM chain JOIN items i ON i.response_id = chain.id
    WHERE i.type = 'mcp_approval_request' AND i.item_id = ANY(CAST(:ids AS text[]))
    UNION ALL
    SELECT i.item_id, i.payload ->> 'server_label' FROM before JOIN {_ITEMS_BEFORE}
    WHERE i.type = 'mcp_approval_request' AND i.item_id = ANY(CAST(:ids AS text[]))
    """,
    ApprovalRequest,
)
"""Selects those of the approval requests `ids` that are in the response `id` or in its history."""

CONVERSATION_APPROVAL_REQUESTS = Query(
    """
    SELECT i.item_id AS id, i.payload ->> 'server_label' AS server_label FROM items i
    WHERE i.conversation_id = :id AND i.type = 'mcp_approval_request' AND i.item_id = ANY(CAST(:ids AS text[]))
    """,
    ApprovalRequest,
)
"""Selects those of the approval requests `ids` that are in the conversation `id`."""


CUT_OFF_CALLS = column(
    f"""{_CHAIN},
    place AS (
        SELECT conversation_id, first_item FROM before UNION ALL SELECT CAST(:conversation AS uuid), NULL
        WHERE CAST(:conversation AS uuid) IS NOT NULL
    )
    SELECT found.payload ->> 'call_id' AS call_id FROM (
        SELECT i.type, i.payload FROM chain JOIN items i ON i.response_id = chain.id
        UNION ALL
        SELECT i.type, i.payload FROM place JOIN items i ON i.conversation_id = place.conversation_id
          AND (place.first_item IS NULL OR i.id < place.first_item)
    ) found
    WHERE found.type IN {sql_list((*CALLS, *OUTPUTS))} AND found.payload ->> 'call_id' = ANY(CAST(:call_ids AS text[]))
    GROUP BY 1
    HAVING bool_or(found.type IN {sql_list(CALLS)} AND found.payload ->> 'status' = 'incomplete')
      AND NOT bool_or(found.type IN {sql_list(OUTPUTS)})
    """,
    str,
)
"""Selects those of `call_ids` whose call in the response `id` or its history, or in the
conversation, was cut off and has no output."""

ANSWERED_CALL = column(
    f"""{_CHAIN},
    place AS (
        SELECT conversation_id, first_item FROM before UNION ALL SELECT CAST(:conversation AS uuid), NULL
        WHERE CAST(:conversation AS uuid) IS NOT NULL
    )
    SELECT found.call_id FROM (
        SELECT i.payload ->> 'call_id' AS call_id FROM chain JOIN items i ON i.response_id = chain.id
        WHERE i.type IN {sql_list(OUTPUTS)} AND i.payload ->> 'call_id' = :call_id
        UNION ALL
        SELECT i.payload ->> 'call_id' FROM place
        JOIN items i ON i.conversation_id = place.conversation_id
          AND (place.first_item IS NULL OR i.id < place.first_item)
        WHERE i.type IN {sql_list(OUTPUTS)} AND i.payload ->> 'call_id' = :call_id
    ) found LIMIT 1
    """,
    str,
)
"""Selects the call id if the response `id` or its history, or the conversation, has an output of
that call. No row: it has none."""


@dataclass(frozen=True, slots=True)
class HistoryDigest:
    """A SHA-256 over a history. `broken`: a part of the history was deleted."""

    digest: bytes
    broken: bool


HISTORY_DIGEST = Query(
    f"""{_CHAIN},
    place AS (
        SELECT conversation_id, first_item FROM before UNION ALL SELECT CAST(:conversation AS uuid), NULL
        WHERE CAST(:conversation AS uuid) IS NOT NULL
    ),
    history AS (
        SELECT 10001 AS depth, '' AS direction, i.id AS position, i.payload,
               concat(coalesce(c.turn, i.turn), ' ', coalesce(c.answer, i.answer)) AS call_result
        FROM place JOIN items i ON i.conversation_id = place.conversation_id
          AND (place.first_item IS NULL OR i.id < place.first_item)
        {_TOOL_CALL_OF_ITEM}
        UNION ALL
        SELECT chain.depth, i.direction, i.position, i.payload, concat(c.turn, ' ', c.answer) AS call_result
        FROM chain JOIN items i ON i.response_id = chain.id {_TOOL_CALL_OF_ITEM}
        UNION ALL
        SELECT -1, 'input', e.nr, e.value, ' ' FROM jsonb_array_elements(CAST(:items AS jsonb)) WITH ORDINALITY
            AS e (value, nr)
    ),
    {_BROKEN}
    SELECT sha256(coalesce(string_agg(sha256(convert_to((payload - 'id')::text || call_result, 'UTF8')), ''::bytea
                                      ORDER BY depth DESC, direction, position), ''::bytea)) AS digest,
           (SELECT broken FROM broken) AS broken
    FROM history
    """,
    HistoryDigest,
)
"""Computes one SHA-256 of the history before a request and of its own `items`: item by item without
their ids, and with the results that the model received for calls run by this server. One row."""


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """An item of a response's history, with its JSON as text. A history without items is one row
    with `payload` None."""

    depth: int | None
    """0: of the response itself; higher: of a response further back, or of its conversation"""
    payload: bytes | None
    turn: int | None
    """of a tool call run by this server: the turn in which the model asked for it"""
    result: bytes | None
    """of such a call: what the model received, where the item does not contain it"""
    broken: bool
    """a part of the history was deleted"""
    total_size: int
    """of all items (models/wire/json_input.py); if it is larger than `max_size`, no item is returned"""
    origin: str | None = None
    """of a tool call: sealed, what its upstream wants back with it"""
    is_output: bool = False
    """the item was made here; a call in an input may be a copy of one that was"""


_OUTLASTS_COMPACTION = f"""h.type IN {sql_list({"compaction", "mcp_list_tools", *ADDS_TOOLS})}
                OR h.type = 'message' AND h.payload ->> 'role' IN ('developer', 'system')"""
"""What models/wire/compaction.py uses of the items before the newest compaction."""

HISTORY = Query(
    f"""{_CHAIN},
    history AS (
        SELECT 10001 AS depth, i.id, '' AS direction, 0 AS position, i.type, i.payload,
               coalesce(c.turn, i.turn) AS turn, coalesce(c.answer, i.answer) AS result,
               i.origin, i.direction = 'output' AS is_output, i.size
        FROM before JOIN {_ITEMS_BEFORE} {_TOOL_CALL_OF_ITEM}
        UNION ALL
        SELECT chain.depth, i.id, i.direction, i.position, i.type, i.payload, c.turn, c.answer, i.origin,
               i.direction = 'output', i.size
        FROM chain JOIN items i ON i.response_id = chain.id
          AND (chain.depth > 0 OR i.direction = 'input') {_TOOL_CALL_OF_ITEM}
    ),
    needed AS MATERIALIZED (
        SELECT h.* FROM (
            SELECT history.*, count(*) FILTER (WHERE history.type = 'compaction') OVER (
                       ORDER BY depth, direction DESC, position DESC, id DESC ROWS BETWEEN UNBOUNDED PRECEDING
                         AND 1 PRECEDING) AS later_compactions
            FROM history) h
        WHERE h.later_compactions = 0 OR h.depth = 0 OR {_OUTLASTS_COMPACTION}
    ),
    total AS (SELECT coalesce(sum(needed.size), 0)::bigint AS size FROM needed),
    {_BROKEN}
    SELECT needed.depth, needed.payload, needed.turn, needed.result, broken.broken, total.size AS total_size,
           needed.origin, coalesce(needed.is_output, false) AS is_output
    FROM broken CROSS JOIN total LEFT JOIN needed ON total.size <= CAST(:max_size AS bigint)
    ORDER BY needed.depth DESC, needed.direction, needed.position, needed.id
    """,
    HistoryRow,
    size_of=lambda row: row.total_size,
)
"""Selects the history of a response in order: the items of its conversation before it, or the input
and output of each response before it, then its own input ('input' sorts before 'output'). Of the
items before the newest compaction only those that it does not replace. No items, but their size, if
they are larger than `max_size`: Postgres judges them without loading them."""


@dataclass(frozen=True, slots=True)
class StoredOrigin:
    """A call that was made here."""

    call_key: str
    item_id: str
    content: str
    """a digest of its name and its arguments"""
    origin: str
    """sealed: what its upstream wants back with it"""


MAX_ORIGINS = 16
"""Calls with one key that CALL_ORIGINS returns. Some upstreams use their ids again."""
CALL_ORIGINS = Query(
    f"""
    SELECT wanted.key AS call_key, found.item_id, found.content, found.origin
    FROM (SELECT DISTINCT unnest(CAST(:keys AS text[])) AS key) wanted CROSS JOIN LATERAL (
        SELECT i.item_id,
               md5(concat(i.payload ->> 'name', ' ',
                          coalesce(i.payload ->> 'arguments', i.payload ->> 'input'))) AS content, i.origin, i.id
        FROM items i LEFT JOIN responses r ON r.id = i.response_id
        WHERE i.call_key = wanted.key AND r.delete_requested_at IS NULL ORDER BY i.id DESC LIMIT {MAX_ORIGINS}
    ) found ORDER BY found.id DESC
    """,
    StoredOrigin,
)
"""Selects the origins of calls that clients have sent back, by their keys, newest first. A key is
bound to its project; a deleted response has none."""
