"""Search in the chunks of one vector store.

By embedding and by words, each with the best chunks first; features/retrieval/search.py joins the two.
Only files that are completely ingested are searched. `filter` is a jsonpath on their attributes
(features/retrieval/options.py); null: all files.
"""

from dataclasses import dataclass
from uuid import UUID

from features.retrieval.queries import IS_EXPIRED
from models.db.statement import Query, Statement, column
from models.wire.token_counts import UsageKind


@dataclass(frozen=True, slots=True)
class SearchedStore:
    """What a search must know of a store."""

    id: UUID
    is_expired: bool
    embedding_model: str | None
    requested_dimensions: int | None
    dimensions: int | None
    language: str
    has_index: bool


SEARCHED_STORES = Query(
    f"""
    SELECT s.id, {IS_EXPIRED} AS is_expired, s.embedding_model, s.requested_dimensions, s.dimensions, s.language,
           s.has_index
    FROM vector_stores s WHERE s.id = ANY(CAST(:ids AS uuid[])) AND s.project_id = :project
      AND s.delete_requested_at IS NULL
    """,
    SearchedStore,
)
"""Those of the stores `ids` that the project has."""


@dataclass(frozen=True, slots=True)
class FoundChunk:
    """A chunk that a search has found."""

    entry_id: UUID
    number: int
    value: float
    """its cosine distance, from 0 to 2; or the rank of its words, from 0 to 1"""


_ENTRIES = """SELECT e.id FROM vector_store_files e
              WHERE e.store_id = :store AND e.project_id = :project AND e.status = 'completed'
                AND e.delete_requested_at IS NULL
                AND (CAST(:filter AS text) IS NULL OR e.attributes @@ CAST(:filter AS jsonpath))"""

NEAREST_CHUNKS = Query(
    f"""
    SELECT c.entry_id, c.number,
           embedding_distance(c.embedding, (SELECT embedding_of(CAST(:embedding AS text)))) AS value
    FROM vector_store_chunks c WHERE c.store_id = :store AND c.entry_id IN ({_ENTRIES}) ORDER BY value LIMIT :limit
    """,
    FoundChunk,
)
"""The chunks nearest to an embedding, by comparing it with each."""

NEAREST_CHUNKS_BY_INDEX = Query(
    f"""
    SELECT n.entry_id, n.number, n.distance AS value
    FROM nearest_chunks(:store, :dimensions, CAST(:embedding AS text), :most) n
    WHERE n.entry_id IN ({_ENTRIES}) ORDER BY value LIMIT :limit
    """,
    FoundChunk,
)
"""The same by the HNSW index of the store: of the `most` nearest chunks those of files that are
searched. There may be fewer than the store has."""

_WORD = r"""'''' || replace(replace(lexeme, '\', '\\'), '''', '''''') || ''''"""
"""A lexeme as a tsquery writes it."""


def _matching(query: str) -> str:
    return f"""(SELECT c.entry_id, c.number, c.words FROM vector_store_chunks c
                WHERE c.words @@ (SELECT CAST(:store_word AS tsquery) && {query} FROM query) AND c.store_id = :store
                  AND c.entry_id IN (SELECT id FROM entries)
                LIMIT :ranked)"""


CHUNKS_WITH_WORDS = Query(
    f"""
    WITH words AS MATERIALIZED (SELECT {_WORD} AS word
                                FROM unnest(to_tsvector(CAST(:language AS regconfig), CAST(:query AS text))) LIMIT 64),
         query AS MATERIALIZED (SELECT string_agg(word, ' & ')::tsquery AS every_word,
                                       string_agg(word, ' | ')::tsquery AS some_word FROM words),
         entries AS ({_ENTRIES}),
         matching AS (SELECT DISTINCT ON (entry_id, number) *
                      FROM ({_matching("every_word")} UNION ALL {_matching("some_word")}) c)
    SELECT entry_id, number, ts_rank(words, (SELECT some_word FROM query), 32)::float8 AS value FROM matching
    ORDER BY value DESC, entry_id, number LIMIT :limit
    """,
    FoundChunk,
    is_planned_anew=True,
)
"""The chunks with words of a query, those with more of them first. Up to `ranked` chunks that have
all words and as many that have some are ranked, so that frequent words cost no more. `store_word`:
the store's own word, which each of its chunks has (STORE_CHUNKS)."""


@dataclass(frozen=True, slots=True)
class ChunkText:
    """A chunk that is returned."""

    entry_id: UUID
    number: int
    text: str
    file_id: UUID
    filename: str
    attributes: dict[str, str | float | bool]


CHUNKS = Query(
    """
    SELECT c.entry_id, c.number, c.text, e.file_id, f.filename, e.attributes
    FROM unnest(CAST(:entries AS uuid[]), CAST(:numbers AS int[])) AS found (entry_id, number)
    JOIN vector_store_chunks c ON c.store_id = :store AND c.entry_id = found.entry_id AND c.number = found.number
    JOIN vector_store_files e ON e.id = c.entry_id AND e.project_id = :project AND e.delete_requested_at IS NULL
    JOIN files f ON f.id = e.file_id
    """,
    ChunkText,
)
"""The chunks with these numbers of these entries, in any order. One is missing: it was deleted
meanwhile."""

TOUCH_STORES = Statement(f"""
    WITH used AS (
        INSERT INTO usage_entries (project_id, api_key_id, model, upstream, service_tier, kind, requests, input_tokens,
                                   cached_tokens, output_tokens, reasoning_tokens, cost)
        SELECT CAST(:project AS uuid), CAST(:api_key AS uuid), u.model, u.upstream, NULL, '{UsageKind.EMBEDDINGS}', 1,
               u.tokens, 0, 0, 0, u.cost
        FROM unnest(CAST(:models AS text[]), CAST(:upstreams AS text[]), CAST(:tokens AS int[]),
                    CAST(:costs AS bigint[])) AS u (model, upstream, tokens, cost))
    UPDATE vector_stores SET last_active_at = clock_timestamp(),
           expires_at = clock_timestamp() + expires_after_days * interval '1 day'
    WHERE id = ANY(CAST(:ids AS uuid[])) AND last_active_at < clock_timestamp() - interval '1 minute'
      AND delete_requested_at IS NULL
      AND (expires_at IS NULL OR expires_at > clock_timestamp())
""")
"""The stores are used now, which is written once a minute at most, and each of the models has made
embeddings of queries for `api_key`."""

HAS_EMBEDDINGS = column(
    """
    SELECT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('vector_store_chunks')
                   AND attname = 'embedding' AND NOT attisdropped) AS has_embeddings
    """,
    bool,
)
"""Whether pgvector was there when the schema was made or migrated last; always one row."""
