"""Search in a large vector store, beside the same embeddings in a table of pgvector alone.

Recall is the share of the nearest chunks by exact search that a search by the index finds.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from bench.figures import Row
from bench.generated_store import NO_TIMEOUT, GeneratedStore, Query
from bench.rates import percentile
from features.retrieval.embedder import Embedder, Embeddings, TextOwner
from features.retrieval.options import SearchOptions
from features.retrieval.search import ChunkSearch
from features.retrieval.search_queries import (
    NEAREST_CHUNKS,
    NEAREST_CHUNKS_BY_INDEX,
    FoundChunk,
    SearchedStore,
)
from features.retrieval.vector_index import VectorIndexes
from models.config.settings import Settings
from models.db.database import Pool, fetch

_PLAIN = "pgvector alone"
_FOUND = 100
"""Chunks of each list, as the product has it."""

Found = Callable[[Query], Awaitable[Sequence[tuple[UUID, int]]]]
"""A search: the places of the chunks that it finds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a search has found for each query, and the milliseconds that each took."""

    found: list[list[tuple[UUID, int]]]
    times: list[float]

    @property
    def p50(self) -> float:
        return percentile(self.times, 50)

    def recall(self, exact: "Measured", count: int) -> float:
        """Per cent of the first `count` of `exact` that are among the first `count` here."""
        pairs = zip(self.found, exact.found, strict=True)
        shares = [
            len(set(mine[:count]) & set(best[:count])) / len(best[:count]) for mine, best in pairs
        ]
        return 100 * sum(shares) / len(shares)


class _KnownEmbeddings(Embedder):
    """Has the embeddings of the queries, so that no upstream's time counts."""

    def __init__(self, queries: Sequence[Query]) -> None:
        self._known = {query.text: query.embedding for query in queries}

    async def embed(
        self,
        owner: TextOwner,  # noqa: ARG002 - as Embedder
        texts: Sequence[str],
        model: str,  # noqa: ARG002
        dimensions: int | None,
    ) -> Embeddings:
        return Embeddings([self._known[text] for text in texts], dimensions or 0, 0, "")


class SearchBench:
    """The searches in one store."""

    def __init__(self, pool: Pool, settings: Settings, store: GeneratedStore) -> None:
        self._pool = pool
        self._settings = settings
        self._store = store
        self._size = f"{store.chunks} chunks"

    async def rows(self, queries: Sequence[Query]) -> AsyncIterator[Row]:
        """The figures, as they are measured."""
        plain_seconds = await self._make_plain()
        began = time.monotonic()
        await VectorIndexes(self._settings).make_if_large(self._store.id)
        seconds = time.monotonic() - began
        yield Row(f"build of the index, {self._size}", seconds, "s", None, plain_seconds, _PLAIN)
        exact = await _measure(queries, self._nearest)
        ours = await _measure(queries, self._by_index)
        plain = await self._measure_plain(queries, 40, 10)
        wide = await self._measure_plain(queries, 200, _FOUND)
        for count, beside, name in ((10, plain, "ef_search 40"), (100, wide, "ef_search 200")):
            yield Row(
                f"recall@{count} by embeddings, {self._size}",
                ours.recall(exact, count),
                "%",
                None,
                beside.recall(exact, count),
                f"{_PLAIN}, {name}",
            )
        yield Row(
            f"100 nearest chunks by the index (p50), {self._size}",
            ours.p50,
            "ms",
            None,
            wide.p50,
            f"{_PLAIN}, ef_search 200",
            f"p99 {percentile(ours.times, 99):.1f}; {_PLAIN} {percentile(wide.times, 99):.1f}, "
            f"with ef_search 40 and 10 results {plain.p50:.1f}; exact {exact.p50:.0f}",
        )
        async for row in self._search_rows(queries, plain.p50):
            yield row

    async def _search_rows(self, queries: Sequence[Query], floor: float) -> AsyncIterator[Row]:
        """Whole searches: both lists, their fusion, and the texts of the results."""
        search = ChunkSearch(self._pool, _KnownEmbeddings(queries))
        [store] = await search.stores(self._store.project, [self._store.id])
        exact_store = replace(store, has_index=False)
        for name, options in (
            ("hybrid search", SearchOptions(max_results=_FOUND)),
            ("search by embeddings", SearchOptions(max_results=_FOUND, by_embedding_alone=True)),
        ):
            exact = await _measure(queries, self._search(search, exact_store, options))
            ours = await _measure(queries, self._search(search, store, options))
            ten = replace(options, max_results=10)
            short = await _measure(queries, self._search(search, store, ten))
            yield Row(
                f"{name}, 10 results (p50), {self._size}",
                short.p50,
                "ms",
                None,
                floor,
                f"{_PLAIN}, ef_search 40, 10 results",
                f"p99 {percentile(short.times, 99):.1f}; as exact search: "
                f"{ours.recall(exact, 10):.1f} % of 10, {ours.recall(exact, 100):.1f} % of 100; "
                f"exact {exact.p50:.0f}",
            )

    async def _make_plain(self) -> float:
        """The same embeddings in a table of their own; returns the seconds of its index."""
        dimensions, home = self._store.dimensions, self._store.home
        async with self._pool.connection() as connection:
            await connection.execute(NO_TIMEOUT)
            await connection.execute(
                "CREATE TABLE bench_plain AS SELECT entry_id, number, "
                f"embedding::{home}.halfvec({dimensions}) FROM vector_store_chunks".encode()
            )
            memory = self._settings.retrieval.index_memory // 1024
            await connection.execute(f"SET maintenance_work_mem = '{memory}kB'".encode())
            began = time.monotonic()
            make = f"CREATE INDEX ON bench_plain USING hnsw (embedding {home}.halfvec_cosine_ops)"
            await connection.execute(make.encode())
            await connection.execute("RESET maintenance_work_mem")
            return time.monotonic() - began

    async def _measure_plain(
        self, queries: Sequence[Query], ef_search: int, limit: int
    ) -> Measured:
        home, dimensions = self._store.home, self._store.dimensions
        sql = (
            f"SELECT entry_id, number FROM bench_plain ORDER BY embedding OPERATOR({home}.<=>) "
            f"%s::{home}.halfvec({dimensions}) LIMIT {limit}"
        ).encode()
        async with self._pool.connection() as connection:

            async def find(query: Query) -> list[tuple[UUID, int]]:
                return await (await connection.execute(sql, [query.embedding])).fetchall()

            await connection.execute(f"SET hnsw.ef_search = {ef_search}".encode())
            try:
                return await _measure(queries, find)
            finally:
                await connection.execute("RESET hnsw.ef_search")

    def _values(self, query: Query) -> dict[str, Any]:
        store = self._store
        return {
            "store": store.id,
            "project": store.project,
            "filter": None,
            "limit": _FOUND,
            "embedding": query.embedding,
        }

    async def _nearest(self, query: Query) -> list[tuple[UUID, int]]:
        return _places(await fetch(self._pool, NEAREST_CHUNKS, self._values(query)))

    async def _by_index(self, query: Query) -> list[tuple[UUID, int]]:
        by_index = {"dimensions": self._store.dimensions, "most": 2 * _FOUND}
        values = self._values(query) | by_index
        return _places(await fetch(self._pool, NEAREST_CHUNKS_BY_INDEX, values))

    def _search(self, search: ChunkSearch, store: SearchedStore, options: SearchOptions) -> Found:
        async def find(query: Query) -> list[tuple[UUID, int]]:
            owner = TextOwner(self._store.project, None)
            results = await search.search(owner, [store], [query.text], options)
            return [(result.file_id, hash(result.text)) for result in results]

        return find


async def _measure(queries: Sequence[Query], search: Found) -> Measured:
    """One query after the other, after a round that is not counted."""
    for query in queries[: max(1, len(queries) // 10)]:
        await search(query)
    found, times = [], []
    for query in queries:
        began = time.perf_counter()
        found.append(list(await search(query)))
        times.append((time.perf_counter() - began) * 1000)
    return Measured(found, times)


def _places(chunks: Sequence[FoundChunk]) -> list[tuple[UUID, int]]:
    return [(chunk.entry_id, chunk.number) for chunk in chunks]
