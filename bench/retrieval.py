"""`./dev bench retrieval`: search in a large vector store, beside pgvector alone, and ingest."""

import argparse
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import uvloop
from pydantic import SecretStr

from bench import baseline
from bench.deployment import Cluster, cluster
from bench.figures import HEADING, Row, to_text
from bench.generated_store import CHUNKS_OF_FILE, GeneratedStore
from bench.ingest import ingest_row
from bench.paced_upstream import model
from bench.system import Module, until_ready
from bench.vector_search import SearchBench
from models.config.feature_groups import RetrievalSettings
from models.config.settings import Settings
from models.db.database import open_pool

_MODEL = model(1)
_CONNECTIONS = 4
MIB = 1024 * 1024


async def _rows(folder: Path, options: argparse.Namespace) -> AsyncIterator[Row]:
    settings = {
        "BACKBURNER_RETRIEVAL__EMBEDDING_MODEL": _MODEL,
        "BACKBURNER_RETRIEVAL__DIMENSIONS": str(options.dimensions),
        "BACKBURNER_FILES__FOLDER": str(folder / "files"),
    }
    with ExitStack() as stack:
        upstream = stack.enter_context(Module("bench.paced_upstream", folder))
        async with cluster(folder, f"{upstream.url}/v1", settings) as started:
            await until_ready(upstream)
            if options.chunks:
                async for row in _search_rows(started, options):
                    yield row
            yield await ingest_row(started)


async def _search_rows(started: Cluster, options: argparse.Namespace) -> AsyncIterator[Row]:
    settings = Settings(
        database_url=SecretStr(started.dsn),
        redis_url=SecretStr(started.valkey.url),
        retrieval=RetrievalSettings(index_from=1, index_memory=options.index_memory * MIB),
    )
    pool = open_pool(settings, "bench", _CONNECTIONS)
    await pool.open(wait=True)
    try:
        async with pool.connection() as connection:
            found = await (await connection.execute("SELECT id FROM projects")).fetchone()
        assert found is not None
        store = GeneratedStore(pool, found[0], options.chunks, options.dimensions)
        began = time.monotonic()
        await store.fill(_MODEL)
        print(f"{options.chunks} chunks made in {time.monotonic() - began:.0f} s", flush=True)
        queries = await store.queries(options.queries)
        async for row in SearchBench(pool, settings, store).rows(queries):
            yield row
    finally:
        await pool.close()


async def _run(folder: Path, options: argparse.Namespace) -> None:
    async for row in _rows(folder, options):
        print(to_text(row, None), flush=True)


def main(arguments: list[str]) -> int:
    """Runs the benchmark with these arguments of the command line. Returns 0."""
    parser = argparse.ArgumentParser(
        prog="./dev bench retrieval",
        description="Measure search in a vector store with generated chunks, beside pgvector"
        " alone, and how fast files are ingested.",
    )
    parser.add_argument(
        "--chunks",
        type=int,
        default=100_000,
        help=f"a multiple of {CHUNKS_OF_FILE}; 0: only the ingest (default: 100000)."
        " A million need 6 GB on the disk, and most of an hour.",
    )
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument(
        "--index-memory",
        type=int,
        default=RetrievalSettings().index_memory // MIB,
        help="MiB in which PostgreSQL makes an index (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.chunks % CHUNKS_OF_FILE:
        parser.error(f"--chunks must be a multiple of {CHUNKS_OF_FILE}")
    print(f"{baseline.this_machine().to_text()}; load average {os.getloadavg()[0]:.1f}")
    print(HEADING, flush=True)
    with tempfile.TemporaryDirectory(prefix="backburner-retrieval-") as folder:
        uvloop.run(_run(Path(folder), options))
    return 0
