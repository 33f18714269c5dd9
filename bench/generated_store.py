"""A vector store with generated chunks, and the same embeddings in a table of pgvector alone.

A chunk is 40 words: most of them from the 30 words of its topic, the others from all words. Each
word has a random direction, and the embedding of a text is the mean of its words. So chunks of a
topic are near each other, as those of real documents are, and words and embeddings agree.
"""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from features.files import queries as files
from features.retrieval import queries as vector_stores
from models.db.arrays import Ints, Texts, Uuids
from models.db.database import Connection, Json, Pool, execute, fetch
from models.ids import new_uuid

_WORDS = 20_000
_TOPIC_WORDS = 30
_CHUNKS_OF_TOPIC = 100
CHUNKS_OF_FILE = 1000
_STEP = 10_000
"""Chunks that one statement makes."""
NO_TIMEOUT = "SET statement_timeout = 0"
"""For the session."""
_SEED = "SELECT setseed(0.5)"
_MAKE_WORDS = """
CREATE TABLE bench_words AS SELECT n AS id, 'w' || n AS word,
    ARRAY(SELECT random() - 0.5 + 0 * n FROM generate_series(1, {dimensions}))::real[]
        ::{home}.halfvec({dimensions}) AS embedding
FROM generate_series(1, {words}) n
"""
_MAKE_TOPICS = """
CREATE TABLE bench_topics AS SELECT n AS id,
    ARRAY(SELECT 1 + floor(random() * {words})::int + 0 * n
          FROM generate_series(1, {topic_words})) AS words
FROM generate_series(1, {topics}) n
"""
_MAKE_CHUNKS = """
WITH picked AS MATERIALIZED (
    SELECT i, CASE WHEN k <= 28 THEN t.words[1 + floor(random() * {topic_words})::int]
        ELSE 1 + floor(random() * {words})::int END AS word
    FROM generate_series(%(first)s::int, %(last)s::int) i
    JOIN bench_topics t ON t.id = 1 + i %% {topics}
    CROSS JOIN generate_series(1, 40) k),
made AS (
    SELECT p.i, string_agg(w.word, ' ') AS text, {home}.avg(w.embedding) AS embedding
    FROM picked p JOIN bench_words w ON w.id = p.word GROUP BY p.i)
INSERT INTO vector_store_chunks
    (store_id, entry_id, number, project_id, tokens, text, words, embedding)
SELECT %(store)s::uuid, (CAST(%(entries)s AS uuid[]))[1 + i / {of_file}], i %% {of_file},
       %(project)s::uuid, 60, text,
       to_tsvector('simple', text) || array_to_tsvector(ARRAY[%(word)s::text]), embedding
FROM made
"""
_MAKE_QUERIES = """
SELECT string_agg(w.word, ' '), {home}.avg(w.embedding)::text
FROM generate_series(1, {queries}) q
JOIN bench_topics t ON t.id = 1 + (q * 7919) % {topics}
JOIN LATERAL (SELECT DISTINCT t.words[1 + floor(random() * {topic_words})::int + 0 * q] AS id
              FROM generate_series(1, 6)) picked ON true
JOIN bench_words w ON w.id = picked.id GROUP BY q ORDER BY q
"""
_HOME = """
SELECT n.nspname FROM pg_extension x JOIN pg_namespace n ON n.oid = x.extnamespace
WHERE x.extname = 'vector'
"""


@dataclass(frozen=True, slots=True)
class Query:
    """A query, and its embedding as pgvector writes one."""

    text: str
    embedding: str


class GeneratedStore:
    """A vector store that is filled without an upstream."""

    def __init__(self, pool: Pool, project: UUID, chunks: int, dimensions: int) -> None:
        """`chunks`: a multiple of `CHUNKS_OF_FILE`."""
        self.id = new_uuid()
        self.project = project
        self.chunks = chunks
        self.dimensions = dimensions
        self.home = ""
        """The schema of pgvector."""
        self._pool = pool
        self._entries = [new_uuid() for _ in range(chunks // CHUNKS_OF_FILE)]

    async def fill(self, model: str) -> None:
        """Makes the store and its chunks. `model`: that of its embeddings."""
        async with self._pool.connection() as connection:
            self.home = (await _rows(connection, _HOME))[0][0]
            await connection.execute(NO_TIMEOUT)
            await connection.execute(_SEED)
            await connection.execute(self._sql(_MAKE_WORDS))
            await connection.execute("ALTER TABLE bench_words ADD PRIMARY KEY (id)")
            await connection.execute(self._sql(_MAKE_TOPICS))
            await connection.execute("ALTER TABLE bench_topics ADD PRIMARY KEY (id)")
            await connection.execute("ANALYZE bench_words, bench_topics")
        await self._make_store(model)
        for first in range(0, self.chunks, _STEP):
            values = {"store": self.id, "project": self.project, "entries": self._entries}
            values |= {"first": first, "last": min(first + _STEP, self.chunks) - 1}
            values["word"] = f"§{self.id.hex}"  # as STORE_CHUNKS has it
            async with self._pool.connection() as connection:
                await connection.execute(NO_TIMEOUT)
                await connection.execute(self._sql(_MAKE_CHUNKS), values)
        async with self._pool.connection() as connection:
            await connection.execute(NO_TIMEOUT)
            await connection.execute("VACUUM ANALYZE vector_store_chunks, vector_store_files")

    async def queries(self, count: int) -> list[Query]:
        """Queries of some words of a topic."""
        async with self._pool.connection() as connection:
            sql = self._sql(_MAKE_QUERIES, queries=count)
            return [Query(*row) for row in await _rows(connection, sql)]

    def _sql(self, template: str, queries: int = 0) -> bytes:
        return template.format(
            queries=queries,
            home=self.home,
            dimensions=self.dimensions,
            words=_WORDS,
            topic_words=_TOPIC_WORDS,
            topics=max(1, self.chunks // _CHUNKS_OF_TOPIC),
            of_file=CHUNKS_OF_FILE,
        ).encode()

    async def _make_store(self, model: str) -> None:
        values: dict[str, object] = dict.fromkeys(("days", "description", "media_type", "lifetime"))
        values |= {"id": self.id, "project": self.project, "name": "bench", "metadata": Json({})}
        values |= {"model": model, "dimensions": self.dimensions, "language": "simple"}
        await execute(self._pool, vector_stores.INSERT_STORE, values)
        ids = [new_uuid() for _ in self._entries]
        for number, each in enumerate(ids):
            own = {"id": each, "filename": f"{number}.txt", "purpose": "assistants", "bytes": 1}
            file = values | own | {"upload_time": timedelta(hours=1)}
            await fetch(self._pool, files.INSERT_FILE, file)
            await fetch(self._pool, files.COMPLETE_FILE, file)
        count = len(ids)
        values |= {"store": self.id, "batch": None, "ids": Uuids(self._entries)}
        values |= {"files": Uuids(ids), "attributes": Texts(["{}"] * count)}
        values |= {"max_tokens": Ints([100] * count), "overlaps": Ints([0] * count)}
        await fetch(self._pool, vector_stores.INSERT_ENTRIES, values)
        async with self._pool.connection() as connection:
            await connection.execute(
                "UPDATE vector_store_files SET status = 'completed', chunks = %s"
                " WHERE store_id = %s",
                [CHUNKS_OF_FILE, self.id],
            )
            await connection.execute(
                "UPDATE vector_stores SET dimensions = %s WHERE id = %s", [self.dimensions, self.id]
            )


async def _rows(connection: Connection, sql: str | bytes) -> list[tuple[str, ...]]:
    text = sql.encode() if isinstance(sql, str) else sql
    return await (await connection.execute(text)).fetchall()
