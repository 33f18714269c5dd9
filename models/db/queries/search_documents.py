"""Search documents of responses: how workers make them.

Each stored response that has ended gets one, soon afterwards and outside the statement that ends it
(features/search/worker.py). It has marks of what an operator filters by, and the words of input and
output unless that is switched off. It is deleted with its response.

The texts of clients are read where they are: nothing of them leaves the database.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from models.db.queries.common import ENDED
from models.db.statement import Query, Statement, column
from models.search_text import (
    CACHE_KEY,
    DAY,
    HOUR,
    KEY,
    METADATA,
    MINUTE,
    MINUTE_MS,
    PROJECT,
    SAFETY_IDENTIFIER,
    SIGNS,
    USER,
)

MAX_ITEMS = 50
"""Items of the input, the newest first, and of the output, the first ones first, that are read."""
EXAMINED = 2_000
"""Responses of a step of the walk. A constant: for a parameter Postgres would expect a hundred
times as many, and compile the statement each time."""
MAX_ITEM_SIZE = 256 * 1024
"""Bytes of an item that is read: a larger one is a picture or a file."""

_SIGNS = re.sub(r"([\\\[\]^-])", r"\\\1", SIGNS).replace("'", "''")
_ITEM_PARTS = """CAST(ARRAY['strict $.**.text', 'strict $.**.refusal'] AS jsonpath[])"""


def _words(text: str) -> str:
    # A regular expression takes a fifth of the time of `translate` for so many signs.
    return f"to_tsvector('simple', regexp_replace({text}, '[{_SIGNS}]+', ' ', 'g'))"


def _item_text(item: str) -> str:
    """What is read of an item: texts and refusals wherever they are, and arguments and results of
    calls. Never `encrypted_content`, which is sealed."""
    strings = ", ".join(
        f"CASE jsonb_typeof({item} -> '{name}') WHEN 'string' THEN {item} ->> '{name}' END"
        for name in ("name", "arguments", "input", "output")
    )
    return f"""concat_ws(' ', {strings},
        (SELECT string_agg(part #>> '{{}}', ' ') FROM unnest({_ITEM_PARTS}) path
         CROSS JOIN LATERAL jsonb_path_query({item}, path, '{{}}', true) part WHERE jsonb_typeof(part) = 'string'))"""


def _text(direction: str, order: str) -> str:
    return f"""(SELECT left(string_agg(each.text, ' ' ORDER BY each.position {order}), CAST(:characters AS int))
        FROM (SELECT i.position, left({_item_text("i.payload")}, CAST(:characters AS int)) AS text
              FROM (SELECT l.position, l.payload, sum(l.size) OVER (ORDER BY l.position {order}) AS total
                    FROM (SELECT i.position, i.payload, i.size FROM items i
                          WHERE i.response_id = r.id AND i.direction = '{direction}'
                          ORDER BY i.position {order} LIMIT {MAX_ITEMS}) l
                    WHERE l.size <= {MAX_ITEM_SIZE}) i WHERE i.total <= {2 * MAX_ITEM_SIZE}) each)"""


def _digest(text: str) -> str:
    return f"encode(substr(sha256(convert_to({text}, 'UTF8')), 1, 16), 'hex')"


_MINUTE = f"(CAST('x' || left(replace(r.id::text, '-', ''), 12) AS bit(48))::bigint / {MINUTE_MS})"
_MARKS = f"""array_to_tsvector(array_remove(ARRAY[
        '{PROJECT}' || replace(r.project_id::text, '-', ''), '{KEY}' || replace(r.api_key_id::text, '-', ''),
        '{MINUTE}' || {_MINUTE}, '{HOUR}' || {_MINUTE} / 60, '{DAY}' || {_MINUTE} / 1440,
        '{USER}' || {_digest('f."user"')}, '{SAFETY_IDENTIFIER}' || {_digest("f.safety_identifier")},
        '{CACHE_KEY}' || {_digest("f.prompt_cache_key")}], NULL)
    || ARRAY(SELECT '{METADATA}' || {_digest("m.key || '=' || m.value")}
             FROM json_each_text(CASE json_typeof(f.metadata) WHEN 'object' THEN f.metadata ELSE '{{}}' END) m))"""
HAS_TEXT = """(p.policy -> 'zero_retention' IS DISTINCT FROM 'true'
    AND coalesce(nullif(p.policy -> 'text_search', 'null') = 'true', CAST(:texts AS boolean)))"""
"""Whether the texts of project `p` are searched. `texts`: what the settings say."""
_IS_FOUND = f"r.status IN {ENDED} AND r.store AND r.delete_requested_at IS NULL"

ADD_DOCUMENTS = column(
    f"""
    WITH taken AS MATERIALIZED (
        SELECT r.id, r.project_id, r.api_key_id, r.parameters
        FROM (SELECT unnest((SELECT CAST(:ids AS uuid[]))) AS id) given
        CROSS JOIN LATERAL (SELECT * FROM responses r WHERE r.id = given.id AND {_IS_FOUND}
                            AND NOT EXISTS (SELECT 1 FROM search_documents d WHERE d.response_id = r.id OFFSET 0)
                            OFFSET 0 FOR KEY SHARE OF r SKIP LOCKED) r)
    INSERT INTO search_documents (response_id, has_text, document)
    SELECT r.id, s.has_text, {_MARKS} || CASE WHEN s.has_text THEN
               {_words(f"concat_ws(' ', {_text('input', 'DESC')}, {_text('output', 'ASC')})")} ELSE '' END
    FROM taken r JOIN projects p ON p.id = r.project_id CROSS JOIN LATERAL (SELECT {HAS_TEXT} AS has_text) s
    CROSS JOIN LATERAL json_to_record(r.parameters)
        AS f ("user" text, safety_identifier text, prompt_cache_key text, metadata json)
    ON CONFLICT DO NOTHING RETURNING response_id
    """,
    UUID,
)
"""Adds the documents of those of the responses `ids` that are stored, have ended and have none. `characters`:
of the input and of the output that are read."""

TAKE_STEP = column(
    """
    UPDATE search_walk SET next_at = clock_timestamp() + CAST(:pause AS interval)
    WHERE next_at < clock_timestamp() RETURNING position
    """,
    UUID,
)
"""Takes the next step of the walk; no other process takes one within `pause`, or before END_STEP. No
row: another one has taken it."""
WALK_IS_DUE = column(
    "SELECT EXISTS (SELECT 1 FROM search_walk WHERE next_at < clock_timestamp()) AS due", bool
)
"""For TAKE_STEP."""


@dataclass(frozen=True, slots=True)
class WalkStep:
    """Some responses, the newest first."""

    examined: int
    last: UUID | None
    """the oldest of them; null: there is none"""
    missing: list[UUID]
    """those that need a document"""
    wrong: list[UUID]
    """those whose document has words that it must not have, or lacks those that it may have"""


EXAMINE = Query(
    f"""
    SELECT count(*)::int AS examined, (array_agg(r.id ORDER BY r.id))[1] AS last,
           coalesce(array_agg(r.id ORDER BY r.id DESC) FILTER (WHERE {_IS_FOUND} AND d.response_id IS NULL), '{{}}')
               AS missing,
           coalesce(array_agg(r.id) FILTER (WHERE d.has_text <> {HAS_TEXT}), '{{}}') AS wrong
    FROM (SELECT r.id, r.project_id, r.status, r.store, r.delete_requested_at FROM responses r
          WHERE r.id < CAST(:before AS uuid) ORDER BY r.id DESC LIMIT {EXAMINED}) r
    JOIN projects p ON p.id = r.project_id
    LEFT JOIN LATERAL (SELECT d.response_id, d.has_text FROM search_documents d
                       WHERE d.response_id = r.id OFFSET 0) d ON true
    """,
    WalkStep,
)
"""Looks at the newest EXAMINED responses before an id. Always one row."""
INDEX = "ix_search_documents_document"
HAS_DOUBLED = column(
    f"""
    SELECT pg_relation_size('{INDEX}') >= greatest(CAST(:small AS bigint), 2 * index_size) AS has_doubled
    FROM search_walk
    """,
    bool,
)
"""Whether the index has twice the bytes it had when it was made, and at least `small`."""
TRY_INDEX_LOCK = column("SELECT pg_try_advisory_lock(:key) AS locked", bool)
"""For the session. False: another worker makes the index again."""
UNFINISHED_INDEXES = column(
    """
    SELECT indexrelid::regclass::text AS name FROM pg_index
    WHERE indrelid = 'search_documents'::regclass AND NOT indisvalid
    """,
    str,
)
"""What a worker has left that died while it made the index again. Quoted where a name needs it."""
NOTE_INDEX = Statement(f"UPDATE search_walk SET index_size = pg_relation_size('{INDEX}')")
"""Stores the bytes of the index, which was made now."""
DELETE_DOCUMENTS = Statement(
    "DELETE FROM search_documents WHERE response_id = ANY(CAST(:ids AS uuid[]))"
)
END_STEP = Statement(
    """
    UPDATE search_walk SET position = :position, next_at = clock_timestamp() + CAST(:pause AS interval),
           completed_at = CASE WHEN CAST(:completed AS boolean) THEN clock_timestamp() ELSE completed_at END
    """
)
"""Stores where the walk goes on, after how long, and whether it has reached the oldest response."""


@dataclass(frozen=True, slots=True)
class WalkState:
    """How far the walk is."""

    position: UUID
    completed_at: datetime | None
    """null: it has never reached the oldest response; those before `position` may have no
    document"""


WALK_STATE = Query("SELECT position, completed_at FROM search_walk", WalkState)
OLDEST_DOCUMENT = column(
    "SELECT response_id FROM search_documents ORDER BY response_id LIMIT 1", UUID
)
"""Selects the oldest response with a document. No row: there is none."""
