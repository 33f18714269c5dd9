"""Many files of all kinds are ingested into a vector store, while processes are killed."""

import asyncio
import contextlib
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import openai
import psycopg

from cli.embedded.postgres import Postgres
from models.ids import parse_file_id
from tests.chaos.ingest.files import STRATEGY, MixedFile, mixed_files
from tests.chaos.test_restarts import own_servers
from tests.support.api import until
from tests.support.chaos.random_kills import RandomKills
from tests.support.chaos.tracebacks import SERVER_TRACEBACKS
from tests.support.embeddings import EMBEDDING_MODEL, embeddings
from tests.support.fake_upstream import FakeUpstream, Script, UpstreamRequest
from tests.support.stack import Stack, SuiteSettings

_BATCH = 8
"""Texts of one request for embeddings."""
_INGESTS = 4
_UPLOADS = 8
"""At a time."""
_LONGEST = 3600.0
"""Seconds after which an ingest is given up."""


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """What is run."""

    files: int = 1000
    seed: int = 1
    pause: float = 6.0
    """seconds between two kills, on average; 0: nothing is killed"""


@dataclass(slots=True)
class IngestResult:
    """What happened."""

    plan: IngestPlan
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """from the create of the batch of files to the end of the last one"""
    faults: Counter[str] = field(default_factory=Counter)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    """kind and status -> files"""
    chunks: int = 0
    embedded: int = 0
    """texts that the upstream has embedded; those above `chunks` were not stored in time"""


async def run_ingest(plan: IngestPlan) -> IngestResult:
    """Runs the ingest in a deployment of its own: two web processes, two workers."""
    result = IngestResult(plan)
    with tempfile.TemporaryDirectory(prefix="backburner-ingests-") as folder:
        temporary = Path(folder) / "temporary"
        temporary.mkdir()
        settings = {
            "BACKBURNER_RETRIEVAL__EMBEDDING_MODEL": EMBEDDING_MODEL,
            "BACKBURNER_RETRIEVAL__EMBEDDING_BATCH": str(_BATCH),
            "BACKBURNER_RETRIEVAL__INGESTS": str(_INGESTS),
            "TMPDIR": str(temporary),
        }
        async with FakeUpstream() as fake:
            fake.decide(EMBEDDING_MODEL, _counted(result))
            async with own_servers(
                Path(folder),
                SuiteSettings(),
                fake,
                webs=2,
                workers=2,
                settings=settings,
                allowed_tracebacks=SERVER_TRACEBACKS,
            ) as (running, postgres):
                await _Campaign(plan, result, running, postgres).run()
            if left := [path.name for path in temporary.iterdir()]:
                result.violations.append(f"{len(left)} temporary files are left: {left[:3]}")
    return result


def _counted(result: IngestResult) -> Any:
    def decide(request: UpstreamRequest) -> Script:
        result.embedded += len(request.body["input"])
        return embeddings(request)

    return decide


class _Campaign:
    def __init__(
        self, plan: IngestPlan, result: IngestResult, running: Stack, postgres: Postgres
    ) -> None:
        self._plan = plan
        self._result = result
        self._running = running
        self._random = random.Random(plan.seed)
        self._kills = RandomKills(running, postgres, self._random)

    async def run(self) -> None:
        """Fills the result."""
        files = await asyncio.to_thread(mixed_files, self._plan.files, self._random)
        client = self._running.openai()
        store = await client.vector_stores.create(name="campaign")
        ids = await self._upload(client, files)
        began = time.monotonic()
        batch = await client.vector_stores.file_batches.create(
            store.id,
            file_ids=list(ids),
            chunking_strategy={
                "type": "static",
                "static": {
                    "max_chunk_size_tokens": STRATEGY.max_tokens,
                    "chunk_overlap_tokens": STRATEGY.overlap_tokens,
                },
            },
        )
        if self._plan.pause:
            await self._break_until_ended()
        await self._until_ended(len(files))
        self._result.seconds = time.monotonic() - began
        self._result.faults = self._kills.faults
        await self._check_files(ids)
        ended = await client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=store.id)
        failed = sum(bool(file.failure) for file in files)
        counts = (ended.status, ended.file_counts.completed, ended.file_counts.failed)
        if counts != ("completed", len(files) - failed, failed):
            self._result.violations.append(f"the batch of files says {counts}")

    async def _upload(
        self, client: openai.AsyncOpenAI, files: list[MixedFile]
    ) -> dict[str, MixedFile]:
        """By their ids."""
        limit = asyncio.Semaphore(_UPLOADS)

        async def upload(file: MixedFile) -> tuple[str, MixedFile]:
            async with limit:
                made = await client.files.create(
                    file=(file.name, file.content), purpose="assistants"
                )
            return made.id, file

        return dict(await asyncio.gather(*map(upload, files)))

    # --- faults ---

    async def _break_until_ended(self) -> None:
        """Kills processes at random, and restarts PostgreSQL after a third and two thirds."""
        count = self._plan.files
        restarts = [count * 2 // 3, count // 3]
        ended = asyncio.create_task(self._until_ended(count))
        while not ended.done():
            await asyncio.wait({ended}, timeout=self._random.expovariate(1 / self._plan.pause))
            if ended.done():
                break
            if restarts and await self._ended() >= restarts[-1]:
                restarts.pop()
                await self._kills.restart_postgres(crash=len(restarts) == 1)
            else:
                await self._kills.kill()
        await ended
        if restarts:
            self._result.violations.append("PostgreSQL was not restarted twice: too few files")

    async def _ended(self) -> int:
        query = "SELECT count(*) FROM vector_store_files WHERE status <> 'in_progress'"
        found: int = await self._running.value(query)
        return found

    async def _until_ended(self, count: int) -> None:
        async def are_ended() -> bool:
            with contextlib.suppress(psycopg.Error):  # PostgreSQL may be away
                return await self._ended() == count
            return False

        await until(are_ended, within=_LONGEST, every=0.2)

    # --- the promises ---

    async def _check_files(self, ids: dict[str, MixedFile]) -> None:
        """Each file has ended as it must, and has each of its chunks once."""
        found = self._result.violations
        query = (
            "SELECT jsonb_object_agg(e.file_id, jsonb_build_object('status', e.status, 'error', "
            "e.error_code || ': ' || e.error_message, 'chunks', coalesce((SELECT jsonb_agg("
            "c.text ORDER BY c.number) FROM vector_store_chunks c WHERE c.entry_id = e.id), '[]'), "
            "'numbers', coalesce((SELECT jsonb_agg(c.number ORDER BY c.number) "
            "FROM vector_store_chunks c WHERE c.entry_id = e.id), '[]'))) FROM vector_store_files e"
        )
        stored: dict[str, dict[str, Any]] = await self._running.value(query)
        for public_id, file in ids.items():
            row = stored[str(_uuid(public_id))]
            status, chunks = row["status"], row["chunks"]
            self._result.kinds[file.kind, status] += 1
            self._result.chunks += len(chunks)
            if status != ("failed" if file.failure else "completed"):
                found.append(f"{file.name} is {status}: {row['error']}")
            elif file.failure and not row["error"].startswith(file.failure):
                found.append(f"{file.name} has failed with '{row['error']}'")
            elif chunks != await asyncio.to_thread(file.chunks):
                found.append(f"{file.name} has other chunks than it should have")
            if row["numbers"] != list(range(len(chunks))):
                found.append(f"{file.name} has the chunks {row['numbers']}")
            text = " ".join(chunks)
            if missing := [line for line in file.lines if line not in text]:
                found.append(f"{file.name} lacks {missing[:3]}")


def _uuid(public_id: str) -> UUID:
    parsed = parse_file_id(public_id)
    assert parsed is not None
    return parsed
