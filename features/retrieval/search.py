"""Search in vector stores: by embeddings and by words, joined by reciprocal rank fusion.

Each of the two searches gives a list, the best chunk first. A chunk at place `n` of a list gets
`weight / (60 + n)`, and the sums, divided by the largest possible sum, are the scores (Cormack,
Clarke and Büttcher, SIGIR 2009; docs/vector-stores.md).
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from features.retrieval.embedder import Embedder, Embeddings, TextOwner
from features.retrieval.options import SearchOptions
from features.retrieval.search_queries import (
    CHUNKS,
    CHUNKS_WITH_WORDS,
    NEAREST_CHUNKS,
    NEAREST_CHUNKS_BY_INDEX,
    SEARCHED_STORES,
    TOUCH_STORES,
    ChunkText,
    FoundChunk,
    SearchedStore,
)
from models.db.arrays import Ints, Texts, Uuids
from models.db.database import Pool, execute, fetch_idempotent
from models.db.statement import Query
from models.load.fair_queue import FairQueue

ResultT = TypeVar("ResultT")

_FUSION = 60
"""The constant of the fusion, as its authors have it: the lower it is, the more the first places
count."""
_CANDIDATES = 100
"""Chunks of each list."""
_RANKED = 5000
"""Chunks whose words are ranked."""
_AT_ONCE = 4
"""Statements of all searches of a process that run side by side: the others leave connections to
what else the process does. Projects take turns."""

Position = tuple[UUID, int]
"""An entry, and the number of a chunk in it."""
_Model = tuple[str, int | None]
"""A model, and the dimensions that it is asked for."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A chunk that was found."""

    file_id: UUID
    filename: str
    attributes: dict[str, str | float | bool]
    text: str
    score: float
    """from 0 to 1"""


class SearchTooSlow(Exception):
    """A statement of the search has reached its time limit: another try would take as long. The
    message is for the client."""


class ChunkSearch:
    """Searches for one process."""

    def __init__(self, pool: Pool, embedder: Embedder) -> None:
        self._pool = pool
        self._embedder = embedder
        self._slots = FairQueue(_AT_ONCE)

    async def stores(self, project: UUID, ids: Sequence[UUID]) -> list[SearchedStore]:
        """Those of these stores that the project has, in any order."""
        values = {"project": project, "ids": Uuids(ids)}
        return await fetch_idempotent(self._pool, SEARCHED_STORES, values)

    async def search(
        self,
        owner: TextOwner,
        stores: Sequence[SearchedStore],
        queries: Sequence[str],
        options: SearchOptions,
    ) -> list[SearchResult]:
        """The chunks that fit any of the queries best, from any of the stores, the best first. The
        score of a chunk is its best one. Counts as a use of the stores, by their `owner`.

        Raises EmbeddingsUnavailable, EmbeddingsRefused or SearchTooSlow, and what
        DATABASE_UNAVAILABLE names.
        """
        project = owner.project
        embedded, used = await self._embedded(owner, stores, queries)
        found: dict[tuple[_Model | None, int], list[_Lists]] = {}

        async def search_one(store: SearchedStore, model: _Model | None, at: int) -> None:
            one = _OneSearch(self._pool, self._slots, project, store, options)
            lists = await one.lists(queries[at], None if model is None else embedded[model][at])
            found.setdefault((model, at), []).append(lists)

        await _run_all(
            search_one(store, _model_of(store), at)
            for store in stores
            for at in range(len(queries))
        )
        ids = Uuids([store.id for store in stores])
        touched = {"project": project, "api_key": owner.api_key, "ids": ids}
        await execute(self._pool, TOUCH_STORES, touched | used)
        return await self._results(project, list(found.values()), options)

    async def _embedded(
        self, owner: TextOwner, stores: Sequence[SearchedStore], queries: Sequence[str]
    ) -> tuple[dict["_Model", list[str]], dict[str, object]]:
        """The embeddings of the queries, by the model of stores, and what they have used, as
        parameters of TOUCH_STORES."""
        embedded: dict[_Model, list[str]] = {}
        calls: list[tuple[str, Embeddings]] = []
        for model, dimensions in dict.fromkeys(filter(None, map(_model_of, stores))):
            answer = await self._embedder.embed(owner, queries, model, dimensions)
            embedded[model, dimensions] = answer.vectors
            calls.append((model, answer))
        used: dict[str, object] = {
            "models": Texts([model for model, _ in calls]),
            "upstreams": Texts([answer.upstream for _, answer in calls]),
            "tokens": Ints([answer.tokens for _, answer in calls]),
            "costs": [answer.cost for _, answer in calls],
        }
        return embedded, used

    async def _results(
        self, project: UUID, found: Sequence[Sequence["_Lists"]], options: SearchOptions
    ) -> list[SearchResult]:
        """`found`: for each query and each model of stores, what each of the stores has."""
        stores = {
            _position(chunk): lists.store
            for each in found
            for lists in each
            for chunk in (*lists.nearest, *lists.worded)
        }
        best: dict[Position, float] = {}
        for each in found:
            for position, score in _scores(each, options).items():
                best[position] = max(score, best.get(position, 0.0))
        ranked = sorted(
            (-score, position)
            for position, score in best.items()
            if score >= options.score_threshold
        )[: options.max_results]
        texts: dict[Position, ChunkText] = {}
        for store in dict.fromkeys(stores[position] for _, position in ranked):
            positions = [position for _, position in ranked if stores[position] == store]
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
            for score, position in ranked
            if (chunk := texts.get(position)) is not None
        ]


@dataclass(frozen=True, slots=True)
class _Lists:
    """What one query has found in one store."""

    store: UUID
    has_embeddings: bool
    nearest: list[FoundChunk]
    worded: list[FoundChunk]


@dataclass(frozen=True, slots=True)
class _OneSearch:
    """One query in one store."""

    pool: Pool
    slots: FairQueue
    project: UUID
    store: SearchedStore
    options: SearchOptions

    @property
    def values(self) -> dict[str, Any]:
        """Parameters of all statements."""
        return {
            "project": self.project,
            "store": self.store.id,
            "filter": self.options.filter,
            "limit": max(_CANDIDATES, self.options.max_results),
        }

    async def lists(self, query: str, embedding: str | None) -> _Lists:
        """The chunks that were found. `embedding`: that of the query; None: the store has none."""
        if embedding is None:
            return _Lists(self.store.id, False, [], await self._words(query))
        if _is_by_embedding(self.options):
            return _Lists(self.store.id, True, await self._nearest(embedding), [])
        nearest, worded = await _run_all([self._nearest(embedding), self._words(query)])
        return _Lists(self.store.id, True, nearest, worded)

    async def _nearest(self, embedding: str) -> list[FoundChunk]:
        """By the index, if the store has one and no filter would leave few of what it finds; else,
        or if that is too little, by comparing each chunk."""
        values = self.values | {"embedding": embedding}
        store = self.store
        async with self.slots.permit(self.project):
            if store.has_index and self.options.filter is None:
                by_index = {"dimensions": store.dimensions, "most": 2 * values["limit"]}
                found = await self._fetch(NEAREST_CHUNKS_BY_INDEX, values | by_index)
                if len(found) == values["limit"]:
                    return found
            return await self._fetch(NEAREST_CHUNKS, values)

    async def _words(self, query: str) -> list[FoundChunk]:
        values = self.values | {
            "query": query.replace("\0", " "),
            "language": self.store.language,
            "store_word": f"'§{self.store.id.hex}'",
            "ranked": _RANKED,
        }
        async with self.slots.permit(self.project):
            return await self._fetch(CHUNKS_WITH_WORDS, values)

    async def _fetch(self, query: Query[FoundChunk], values: dict[str, Any]) -> list[FoundChunk]:
        try:
            return await fetch_idempotent(self.pool, query, values)
        except psycopg.errors.QueryCanceled as error:
            raise SearchTooSlow("The search took too long. Try a narrower one.") from error


async def _run_all(works: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """The results of these, in their order, which run side by side. The first error ends the
    others, and is raised.

    A TaskGroup would leave a mark of a cancellation on the task that waits, which then does not try
    again when Postgres is back (models/db/database.py).
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _model_of(store: SearchedStore) -> _Model | None:
    """The model and the dimensions of the store's embeddings; None: it has none."""
    if store.embedding_model is None or store.dimensions is None:
        return None
    return store.embedding_model, store.requested_dimensions


def _is_by_embedding(options: SearchOptions) -> bool:
    return options.by_embedding_alone or not options.text_weight


def _scores(found: Sequence[_Lists], options: SearchOptions) -> dict[Position, float]:
    """The score of each chunk that one query has found, in stores with the same model.

    The lists of all stores are joined before they are fused: a place in the list of one store says
    nothing of those in another.
    """
    nearest = sorted((chunk for each in found for chunk in each.nearest), key=_by_distance)
    worded = sorted((chunk for each in found for chunk in each.worded), key=_by_rank)
    if not any(each.has_embeddings for each in found):
        return {_position(chunk): min(1.0, chunk.value) for chunk in worded}
    if _is_by_embedding(options):
        return {_position(chunk): max(0.0, 1.0 - chunk.value) for chunk in nearest}
    lists = [(options.embedding_weight, nearest), (options.text_weight, worded)]
    return fuse([(weight, list(map(_position, chunks))) for weight, chunks in lists])


def _by_distance(chunk: FoundChunk) -> tuple[float, Position]:
    return chunk.value, _position(chunk)


def _by_rank(chunk: FoundChunk) -> tuple[float, Position]:
    return -chunk.value, _position(chunk)


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
