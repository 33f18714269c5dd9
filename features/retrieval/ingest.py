"""The ingest of files into vector stores: a task of every worker.

A worker takes an entry for a short lease, reads the text of its file, cuts it into chunks, and
stores them in groups, each with its embeddings in one statement. The chunks of a file are the same
each time it is read. So after a death another worker reads the file again, leaves out the chunks
that are stored, and goes on behind them: no chunk is stored twice, and none that is stored is
embedded again (docs/vector-stores.md).
"""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import IO, Final
from uuid import UUID

import structlog

from features.files.queries import FILE_PARTS, FIND_FILE
from features.retrieval.chunking import Chunk, Chunker, ChunkingStrategy
from features.retrieval.embedder import (
    Embedder,
    Embeddings,
    EmbeddingsRefused,
    EmbeddingsUnavailable,
    TextOwner,
)
from features.retrieval.extract.child_protocol import ExtractionFailed
from features.retrieval.extract.extraction import extract, limits_of
from features.retrieval.vector_index import VectorIndexes
from features.retrieval.worker_queries import (
    DEFER_ENTRY,
    END_ENTRY,
    HIDE_ENTRY,
    IS_DUE,
    KEEP_ENTRY,
    KNOWN_FAILURE,
    STORE_CHUNKS,
    TAKE_ENTRIES,
    KeptEntry,
    TakenEntry,
)
from models.config.settings import Settings
from models.db.arrays import Ints, Texts, Uuids
from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch
from models.db.queries.file_contents import FileRow
from models.due_work import DuePoll, DueWork, KindOfWork
from models.fence import FENCE, RowLease, RowLeaseEnded
from models.files.content import read_content
from models.files.storage import FileStorage, StorageError
from models.ids import file_id, vector_store_id
from models.load.fair_queue import ReservedSlots
from models.project_policies import ProjectPolicies
from models.tasks import cancel_all
from worker import metrics

logger = structlog.get_logger()

LEASE: Final = timedelta(seconds=20)
"""So long an entry is this worker's since it has taken it, or has stored or renewed something."""
_POLL = 0.5
"""Seconds between two looks for due entries."""
_RENEWAL = 5.0
"""Seconds between two renewals of the lease while nothing is stored."""
_GIVE_BACK = 1.0
"""Seconds that a process which stops has to give an entry back."""
_LONGEST_PAUSE = 300.0
_PLAIN_GROUP = 64
"""Chunks without embeddings that are stored together."""
_MAX_SERVER_ERRORS = 5
"""Attempts in a row, without a new chunk, after which an error of this server fails the file."""
_MAX_CRASHES = 5
"""Attempts in a row, without a new chunk, whose worker died: then the file is not read again. After
the first one, it is ingested alone, so that no other file is blamed for what this one does."""
_SERVER_ERROR = "server_error"
_NOT_INGESTED = "The file could not be ingested because of an error of this server."
_CRASHED = "The file could not be ingested: the processes that read it have crashed."


class _FileGone(Exception):
    """The file or its store was deleted, or has expired."""


class _EntryLost(Exception):
    """Another worker has the entry, or it was cancelled or deleted."""


class _Failed(Exception):
    """The file cannot be ingested. `code`: of `last_error`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Deferred(Exception):
    """The file cannot be ingested now. `pause`: seconds, at least."""

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.pause = pause


class Ingest:
    """The ingest of one process."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        storage: FileStorage,
        embedder: Embedder,
        policies: ProjectPolicies,
    ) -> None:
        self._settings = settings.retrieval
        self._extraction = settings.extraction
        self._pool = pool
        self._storage = storage
        self._embedder = embedder
        self._policies = policies
        self._indexes = VectorIndexes(settings)
        self._slots = ReservedSlots.beside(settings.retrieval.ingests)
        self._due = DueWork(
            pool,
            KindOfWork("ingest", TAKE_ENTRIES, LEASE, _POLL, self._room, self._ingest, _facts),
        )
        self._read: set[UUID] = set()
        """Entries that are ingested now."""
        self._read_alone: UUID | None = None
        """One whose workers have crashed: nothing else is taken until it has ended."""
        self._one_has_ended = asyncio.Event()

    async def run(self, poll: DuePoll) -> None:
        """Ingests until it is cancelled. No error ends it: the process runs responses too. `poll`:
        finds due entries."""
        self._due.find_by(poll, IS_DUE)
        sweep = asyncio.create_task(self._indexes.sweep(self._pool), name="vector-index-sweep")
        try:
            await self._due.run()
        finally:
            await cancel_all([sweep])

    def _room(self, running: Sequence[TakenEntry]) -> dict[str, object] | None:
        """The values of TAKE_ENTRIES beside the lease."""
        free_for_newcomers = self._slots.free_for_newcomers(len(running))
        if self._read_alone is not None or not free_for_newcomers:
            return None
        return {
            "free": self._slots.free(len(running)),
            "free_for_newcomers": free_for_newcomers,
            "busy": Uuids([entry.project_id for entry in running]),
        }

    async def _ingest(self, entry: TakenEntry, lease: RowLease) -> None:
        """Ingests a file, and stores what came of it, or gives it back if it is cancelled."""
        FENCE.set(lease.require)
        try:
            await self._ingest_once(entry, lease)
        except asyncio.CancelledError:
            await self._give_back(entry)
            raise

    async def _ingest_once(self, entry: TakenEntry, lease: RowLease) -> None:
        try:
            chunks = await self._while_kept(entry, lease)
        except _Deferred as reason:
            await self._defer(entry, reason)
        except _Failed as failure:
            await self._end(entry, "failed", None, failure)
        except _FileGone:
            await fetch(self._pool, HIDE_ENTRY, _fence(entry))
        except _EntryLost:
            logger.info("ingest_stopped", **_facts(entry))
        else:
            await self._end(entry, "completed", chunks, None)
            if entry.embedding_model is not None:
                await self._indexes.make_if_large(entry.store_id)

    async def _while_kept(self, entry: TakenEntry, lease: RowLease) -> int:
        """Ingests the file, and renews the lease meanwhile; how many chunks it has. Raises one of
        the four exceptions above, RowLeaseEnded, and what DATABASE_UNAVAILABLE names."""
        if entry.is_gone:
            raise _FileGone
        if entry.crashes >= _MAX_CRASHES:
            raise _Failed(_SERVER_ERROR, _CRASHED)
        work = asyncio.create_task(self._work(entry, lease), name="ingest-file")
        try:
            while not (await asyncio.wait((work,), timeout=_RENEWAL))[0]:
                await self._keep(entry, lease)
            return await work
        except (StorageError, OSError) as error:
            raise self._server_error(entry, str(error)) from error
        except ExtractionFailed as failure:
            if failure.code == _SERVER_ERROR:
                raise self._server_error(entry, failure.message) from failure
            raise _Failed(failure.code, failure.message) from failure
        except EmbeddingsRefused as refusal:
            raise _Failed(_SERVER_ERROR, f"The text could not be embedded: {refusal}") from refusal
        except EmbeddingsUnavailable as error:
            if error.may_be_texts and entry.failures >= _MAX_SERVER_ERRORS:
                raise _Failed(_SERVER_ERROR, f"The text could not be embedded: {error}") from error
            if entry.age > self._settings.ingest_time.total_seconds():
                message = f"The text could not be embedded in time: {error}"
                raise _Failed(_SERVER_ERROR, message) from error
            raise _Deferred(str(error), error.wait) from error
        except (_Failed, _FileGone, _EntryLost, _Deferred, RowLeaseEnded, *DATABASE_UNAVAILABLE):
            raise
        except Exception as error:
            # Each try costs calls of the embedding model: an error of ours is bounded too.
            logger.exception("ingest_error", **_facts(entry))
            raise self._server_error(entry, "an unexpected error") from error
        finally:
            work.cancel()
            await asyncio.wait((work,))

    def _server_error(self, entry: TakenEntry, reason: str) -> Exception:
        if entry.failures < _MAX_SERVER_ERRORS:
            return _Deferred(reason)
        return _Failed(_SERVER_ERROR, _NOT_INGESTED)

    async def _keep(self, entry: TakenEntry, lease: RowLease) -> KeptEntry:
        sent_at = time.monotonic()
        kept = await fetch(self._pool, KEEP_ENTRY, _fence(entry))
        if not kept:
            raise _EntryLost
        lease.renew(sent_at)
        return kept[0]

    @asynccontextmanager
    async def _alone_after_crash(self, entry: TakenEntry) -> AsyncIterator[None]:
        """An entry whose workers have crashed has the process's ingest for itself. Raises _Deferred
        while another one has it."""
        if self._read_alone is not None:
            raise _Deferred("another file is ingested alone, because it has crashed its workers")
        self._read.add(entry.id)
        if entry.crashes:
            self._read_alone = entry.id
        try:
            while entry.crashes and len(self._read) > 1:
                self._one_has_ended.clear()
                await self._one_has_ended.wait()
            yield
        finally:
            self._read.discard(entry.id)
            self._one_has_ended.set()
            if self._read_alone == entry.id:
                self._read_alone = None

    async def _work(self, entry: TakenEntry, lease: RowLease) -> int:
        async with self._alone_after_crash(entry):
            return await self._read_and_store(entry, lease)

    async def _read_and_store(self, entry: TakenEntry, lease: RowLease) -> int:
        """How many chunks the file has."""
        found = {"id": entry.file_id, "project": entry.project_id}
        files = await fetch(self._pool, FIND_FILE, found)
        if not files:
            raise _FileGone
        known = {"file": entry.file_id, "project": entry.project_id}
        for failure in await fetch(self._pool, KNOWN_FAILURE, known):
            raise _Failed(failure.code, failure.message)
        size = self._settings.embedding_batch if entry.embedding_model else _PLAIN_GROUP
        group = _ChunkGroup(size, entry.chunks)
        strategy = ChunkingStrategy(entry.max_chunk_tokens, entry.chunk_overlap_tokens)
        chunker = Chunker(strategy)
        limits = limits_of(self._extraction)
        # It has no name, so it ends with this process, however that ends.
        with tempfile.TemporaryFile() as copy:
            await self._copy(files[0], copy)
            async with extract(copy, files[0].filename, limits) as pieces:
                async for piece in pieces:
                    chunks = await asyncio.to_thread(chunker.feed, piece)
                    for full in group.add(chunks):
                        await self._store(entry, full, lease)
        chunks = await asyncio.to_thread(chunker.finish)
        for full in group.add(chunks):
            await self._store(entry, full, lease)
        if group.chunks:
            await self._store(entry, group.chunks, lease)
        return group.end

    async def _copy(self, file: FileRow, copy: IO[bytes]) -> None:
        """Copies the content of a file to `copy`, and goes back to its beginning. Raises
        StorageError or OSError."""
        parts = await fetch(self._pool, FILE_PARTS, {"id": file.id})
        async for chunk in read_content(self._storage, parts):
            await asyncio.to_thread(copy.write, chunk)
        await asyncio.to_thread(_rewind, copy)

    async def _store(self, entry: TakenEntry, chunks: Sequence[Chunk], lease: RowLease) -> None:
        """Embeds and stores these chunks, the next ones of the file."""
        texts = [chunk.text.replace("\0", " ") for chunk in chunks]
        embeddings = await self._embed(entry, texts)
        vectors = [None] * len(texts) if embeddings is None else embeddings.vectors
        size = sum(len(text.encode()) for text in texts)
        values: dict[str, object] = _fence(entry) | {
            "store": entry.store_id,
            "first": chunks[0].number,
            "count": len(chunks),
            "bytes": size + (0 if embeddings is None else 2 * embeddings.dimensions * len(texts)),
            "texts": Texts(texts),
            "tokens": Ints([chunk.tokens for chunk in chunks]),
            "embeddings": Texts(vectors),
            "dimensions": None if embeddings is None else embeddings.dimensions,
            "model": None if embeddings is None else entry.embedding_model,
            "upstream": None if embeddings is None else embeddings.upstream,
            "input_tokens": 0 if embeddings is None else embeddings.tokens,
            "cost": None if embeddings is None else embeddings.cost,
        }
        query = STORE_CHUNKS["plain" if embeddings is None else "embedded"]
        sent_at = time.monotonic()
        if await fetch(self._pool, query, values):
            lease.renew(sent_at)
            return
        kept = await self._keep(entry, lease)
        if embeddings is not None and kept.dimensions not in (None, embeddings.dimensions):
            raise _Failed(
                _SERVER_ERROR,
                "The embedding model gives other dimensions than the vector store has.",
            )
        # A failover has lost chunks that were stored, or another worker has stored these.
        raise _Deferred(f"{kept.chunks} chunks are stored, not {chunks[0].number}")

    async def _embed(self, entry: TakenEntry, texts: Sequence[str]) -> Embeddings | None:
        """None: the store has no embeddings."""
        model = entry.embedding_model
        if model is None:
            return None
        policy = await self._policies.policy(entry.project_id)
        owner = TextOwner(entry.project_id, policy.routes)
        return await self._embedder.embed(owner, texts, model, entry.requested_dimensions)

    async def _defer(self, entry: TakenEntry, reason: _Deferred) -> None:
        pause = max(reason.pause, min(_LONGEST_PAUSE, 2.0 ** min(entry.failures, 10)))
        values = _fence(entry) | {"pause": timedelta(seconds=pause)}
        await fetch(self._pool, DEFER_ENTRY, values)
        logger.warning("ingest_deferred", **_facts(entry), reason=str(reason), seconds=pause)

    async def _give_back(self, entry: TakenEntry) -> None:
        """This process stops: another one may go on at once."""
        with suppress(TimeoutError, *DATABASE_UNAVAILABLE):
            async with asyncio.timeout(_GIVE_BACK):
                await fetch(self._pool, DEFER_ENTRY, _fence(entry) | {"pause": timedelta(0)})

    async def _end(
        self, entry: TakenEntry, status: str, chunks: int | None, failure: _Failed | None
    ) -> None:
        values = _fence(entry) | {
            "status": status,
            "chunks": chunks,
            "code": None if failure is None else failure.code,
            "message": None if failure is None else str(failure),
        }
        if await fetch(self._pool, END_ENTRY, values):
            metrics.INGESTED.labels(status).inc()
            logger.info("file_ingested", **_facts(entry), status=status, error=values["message"])


def _rewind(file: IO[bytes]) -> None:
    """For another process that gets the file: what counts is the place in the file itself, not
    that in its buffer."""
    file.flush()
    os.lseek(file.fileno(), 0, os.SEEK_SET)


class _ChunkGroup:
    """Gathers the chunks that are stored together."""

    def __init__(self, size: int, first: int) -> None:
        """`first`: the number of the first chunk that is not stored."""
        self._size = size
        self.end = first
        """The number behind the last chunk that was gathered."""
        self.chunks: list[Chunk] = []
        """What was gathered since the last full group."""

    def add(self, chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
        """Takes chunks; the groups that are full now."""
        for chunk in chunks:
            if chunk.number < self.end:
                continue
            self.end = chunk.number + 1
            self.chunks.append(chunk)
            if len(self.chunks) == self._size:
                full, self.chunks = self.chunks, []
                yield full


def _fence(entry: TakenEntry) -> dict[str, object]:
    return {"id": entry.id, "attempts": entry.attempts, "lease": LEASE}


def _facts(entry: TakenEntry) -> dict[str, str]:
    return {
        "vector_store": vector_store_id(entry.store_id),
        "file": file_id(entry.file_id),
        "project": str(entry.project_id),
    }
