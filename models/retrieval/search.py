"""Search in vector stores: by embeddings and by words, joined by reciprocal rank fusion.

Each of the two searches gives a list, the best chunk first. A chunk at place `n` of a list gets
`weight / (60 + n)`, and the sums, divided by the largest possible sum, are the scores (Cormack,
Clarke and Büttcher, SIGIR 2009; ADR 0054).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.config.routes import Route
from models.db.arrays import Ints, Uuids
from models.db.database import Pool, execute, fetch_idempotent
from models.db.queries.chunk_search import (
    CHUNKS,
    CHUNKS_WITH_WORDS,
    NEAREST_CHUNKS,
    NEAREST_CHUNKS_BY_INDEX,
    SEARCHED_STORES,
    ChunkText,
    FoundChunk,
    SearchedStore,
)
from models.db.queries.vector_stores import TOUCH_STORES
from models.retrieval.embedder import Embedder, TextOwner

MAX_RESULTS = 50
_FUSION = 60
"""The constant of the fusion, as its authors have it: the lower it is, the more the first places
count."""
_CANDIDATES = 100
"""Chunks of each list."""
_RANKED = 5000
"""Chunks whose words are ranked."""
_AT_ONCE = 4
"""Statements of one search that run side by side."""

Position = tuple[UUID, int]
"""An entry, and the number of a chunk in it."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How a search is done."""

    max_results: int = 10
    """up to MAX_RESULTS"""
    filter: str | None = None
    """a jsonpath on the attributes of files (models/retrieval/filters.py); None: all files"""
    score_threshold: float = 0.0
    """chunks with a lower score are left out"""
    embedding_weight: float = 1.0
    text_weight: float = 1.0
    by_embedding_alone: bool = False
    """no fusion: the score is the cosine similarity. A store without embeddings is searched by
    words all the same"""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A chunk that was found."""

    file_id: UUID
    filename: str
    attributes: dict[str, str | float | bool]
    text: str
    score: float
    """from 0 to 1"""


class ChunkSearch:
    """Searches for one process."""

    def __init__(self, pool: Pool, embedder: Embedder) -> None:
        self._pool = pool
        self._embedder = embedder

    async def stores(self, project: UUID, ids: Sequence[UUID]) -> list[SearchedStore]:
        """Those of these stores that the project has, in any order."""
        values = {"project": project, "ids": Uuids(ids)}
        return await fetch_idempotent(self._pool, SEARCHED_STORES, values)

    async def search(
        self,
        project: UUID,
        stores: Sequence[SearchedStore],
        queries: Sequence[str],
        options: SearchOptions,
        own_routes: dict[str, Route] | None = None,
    ) -> list[SearchResult]:
        """The chunks that fit any of the queries best, from any of the stores, the best first. The
        score of a chunk is its best one. Counts as a use of the stores. `own_routes`: those of the
        project's policy.

        Raises EmbeddingsUnavailable or EmbeddingsRefused, and what DATABASE_UNAVAILABLE names.
        """
        limit = asyncio.Semaphore(_AT_ONCE)
        embedded = await self._embedded(TextOwner(project, own_routes), stores, queries)
        found: dict[UUID, dict[Position, float]] = {store.id: {} for store in stores}

        async def search_one(store: SearchedStore, at: int) -> None:
            vectors = embedded.get((store.embedding_model, store.requested_dimensions))
            one = _OneSearch(self._pool, limit, project, store, options)
            scores = await one.scores(queries[at], None if vectors is None else vectors[at])
            best = found[store.id]
            for position, score in scores.items():
                best[position] = max(score, best.get(position, 0.0))

        await asyncio.gather(
            *(search_one(store, at) for store in stores for at in range(len(queries)))
        )
        await execute(self._pool, TOUCH_STORES, {"ids": Uuids([store.id for store in stores])})
        return await self._results(project, found, options)

    async def _embedded(
        self, owner: TextOwner, stores: Sequence[SearchedStore], queries: Sequence[str]
    ) -> dict[tuple[str | None, int | None], list[str]]:
        """The embeddings of the queries, by the model and the dimensions of stores."""
        wanted = {
            (store.embedding_model, store.requested_dimensions)
            for store in stores
            if store.embedding_model is not None and store.dimensions is not None
        }
        embedded: dict[tuple[str | None, int | None], list[str]] = {}
        for model, dimensions in wanted:
            assert model is not None
            answer = await self._embedder.embed(owner, queries, model, dimensions)
            embedded[model, dimensions] = answer.vectors
        return embedded

    async def _results(
        self, project: UUID, found: dict[UUID, dict[Position, float]], options: SearchOptions
    ) -> list[SearchResult]:
        ranked = sorted(
            (
                (-score, position, store)
                for store, scores in found.items()
                for position, score in scores.items()
                if score >= options.score_threshold
            ),
        )[: options.max_results]
        texts: dict[Position, ChunkText] = {}
        for store in dict.fromkeys(each[2] for each in ranked):
            positions = [position for _, position, of in ranked if of == store]
            values = {
                "store": store,
                "project": project,
                "entries": Uuids([entry for entry, _ in positions]),
                "numbers": Ints([number for _, number in positions]),
            }
            for row in await fetch_idempotent(self._pool, CHUNKS, values):
                texts[row.entry_id, row.number] = row
        return [
            SearchResult(chunk.file_id, chunk.filename, chunk.attributes, chunk.text, -score)
            for score, position, _ in ranked
            if (chunk := texts.get(position)) is not None
        ]


class _OneSearch:
    """One query in one store."""

    def __init__(
        self,
        pool: Pool,
        limit: asyncio.Semaphore,
        project: UUID,
        store: SearchedStore,
        options: SearchOptions,
    ) -> None:
        self._pool = pool
        self._limit = limit
        self._store = store
        self._options = options
        self._values: dict[str, Any] = {
            "project": project,
            "store": store.id,
            "filter": options.filter,
            "limit": max(_CANDIDATES, options.max_results),
        }

    async def scores(self, query: str, embedding: str | None) -> dict[Position, float]:
        """The score of each chunk that was found. `embedding`: that of the query; None: the store
        has none."""
        if embedding is None:
            return {_position(chunk): min(1.0, chunk.value) for chunk in await self._words(query)}
        if self._options.by_embedding_alone or not self._options.text_weight:
            nearest = await self._nearest(embedding)
            return {_position(chunk): max(0.0, 1.0 - chunk.value) for chunk in nearest}
        nearest, worded = await asyncio.gather(self._nearest(embedding), self._words(query))
        lists = [(self._options.embedding_weight, nearest), (self._options.text_weight, worded)]
        return fuse([(weight, list(map(_position, chunks))) for weight, chunks in lists])

    async def _nearest(self, embedding: str) -> list[FoundChunk]:
        """By the index, if the store has one and no filter would leave few of what it finds; else,
        or if that is too little, by comparing each chunk."""
        values = self._values | {"embedding": embedding}
        store = self._store
        async with self._limit:
            if store.has_index and self._options.filter is None:
                by_index = {"dimensions": store.dimensions, "most": 2 * values["limit"]}
                found = await fetch_idempotent(
                    self._pool, NEAREST_CHUNKS_BY_INDEX, values | by_index
                )
                if len(found) == values["limit"]:
                    return found
            return await fetch_idempotent(self._pool, NEAREST_CHUNKS, values)

    async def _words(self, query: str) -> list[FoundChunk]:
        values = self._values | {
            "query": query.replace("\0", " "),
            "language": self._store.language,
            "store_word": f"'§{self._store.id.hex}'",
            "ranked": _RANKED,
        }
        async with self._limit:
            return await fetch_idempotent(self._pool, CHUNKS_WITH_WORDS, values)


def fuse(lists: Sequence[tuple[float, Sequence[Position]]]) -> dict[Position, float]:
    """The scores, from 0 to 1, of what is in lists with weights, the best of each first."""
    total = sum(weight for weight, _ in lists)
    scores: dict[Position, float] = {}
    for weight, positions in lists:
        for place, position in enumerate(positions):
            share = weight / total * (_FUSION + 1) / (_FUSION + 1 + place)
            scores[position] = scores.get(position, 0.0) + share
    return {position: min(1.0, score) for position, score in scores.items() if score > 0}


def _position(chunk: FoundChunk) -> Position:
    return chunk.entry_id, chunk.number
