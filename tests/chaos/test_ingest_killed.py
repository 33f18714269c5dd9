"""Files are ingested while workers are killed: each chunk of each file is stored once."""

import pytest

from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.embeddings import EMBEDDING_MODEL
from tests.support.stack import Stack

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

FILES = 220
LINES = 40
KILLS = 6


async def test_each_chunk_is_stored_once_although_workers_are_killed(
    private_stack: PrivateStack,
) -> None:
    settings = {
        "BACKBURNER_RETRIEVAL__EMBEDDING_MODEL": EMBEDDING_MODEL,
        "BACKBURNER_RETRIEVAL__EMBEDDING_BATCH": "2",
        "BACKBURNER_RETRIEVAL__INGESTS": "8",
    }
    async with private_stack(settings=settings, workers=2) as own:
        client = own.openai()
        store = await client.vector_stores.create()
        ids = []
        for number in range(FILES):
            text = "".join(f"file {number} line {line} {'xyz ' * 30}\n" for line in range(LINES))
            file = await client.files.create(
                file=(f"{number}.txt", text.encode()), purpose="assistants"
            )
            ids.append(file.id)
        batch = await client.vector_stores.file_batches.create(
            store.id,
            file_ids=ids,
            chunking_strategy={
                "type": "static",
                "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 20},
            },
        )
        for kill in range(KILLS):
            await _until_stored(own, (kill + 1) * FILES // (KILLS + 2))
            own.kill(own.workers[0])
            await own.start_worker()
        await _until_stored(own, FILES)

        ended = await client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=store.id)
        assert (ended.status, ended.file_counts.completed) == ("completed", FILES)
        # The primary key excludes a chunk that is there twice; this excludes one that is missing.
        wrong = await own.value(
            """
            SELECT count(*) FROM vector_store_files e CROSS JOIN LATERAL (
                SELECT count(*) AS stored, max(c.number) AS last
                FROM vector_store_chunks c WHERE c.entry_id = e.id) n
            WHERE n.stored <> e.chunks OR n.last <> e.chunks - 1
            """
        )
        assert wrong == 0
        lines = await own.value(
            "SELECT count(DISTINCT m[1]) FROM vector_store_chunks c,"
            " regexp_matches(c.text, 'file [0-9]+ line [0-9]+', 'g') m"
        )
        assert lines == FILES * LINES


async def _until_stored(own: Stack, files: int) -> None:
    sql = "SELECT count(*) FROM vector_store_files WHERE status = 'completed'"

    async def are_stored() -> bool:
        return bool(await own.value(sql) >= files)

    await until(are_stored, within=400, every=0.05)
