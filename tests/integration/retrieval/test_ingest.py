"""The ingest of files into vector stores: each chunk is stored once, whoever dies."""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from cli.database.migrate import migrate
from cli.demo_upstream.replies import DIMENSIONS, embed
from features.files import queries as files
from features.retrieval import ingest as ingest_module
from features.retrieval import queries as vector_stores
from features.retrieval.embedder import Embedder
from features.retrieval.extract import extraction
from features.retrieval.ingest import LEASE, Ingest
from features.retrieval.search_queries import (
    CHUNKS_WITH_WORDS,
    HAS_EMBEDDINGS,
    NEAREST_CHUNKS,
    NEAREST_CHUNKS_BY_INDEX,
)
from features.retrieval.worker_queries import TAKE_ENTRIES, index_name
from models import fence
from models.config.feature_groups import FileSettings, RetrievalSettings
from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.db.arrays import Ints, Texts, Uuids
from models.db.database import Json, execute, fetch, open_pool
from models.db.queries.audit import Actor, ActorKind, AuditEntry
from models.due_work import DuePoll
from models.files.content import write_part
from models.files.opening import open_storage
from models.ids import new_uuid
from models.ownership.lease import AccessRevision
from models.project_policies import ProjectPolicies
from models.projects.routes import ProjectRoutes
from models.tasks import cancel_all
from tests.support.api import until
from tests.support.embeddings import embeddings
from tests.support.fake_upstream import (
    Exchange,
    FakeUpstream,
    Script,
    Step,
    UpstreamRequest,
    error_body,
    hang,
    status,
)
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, run_purge, settings_for

CHUNKS = 9
TEXT = "".join(f"chunk {number} {'xyz ' * 97}end\n" for number in range(CHUNKS))
"""Each line has 100 tokens."""
HOUR = timedelta(hours=1)


class Stores:
    """A database with one vector store and one file that is added to it."""

    def __init__(self, database: SeededDatabase, settings: Settings) -> None:
        self._database = database
        self.settings = settings
        self.project = database.project
        self.pool = database.pool
        self.store = new_uuid()
        storage = open_storage(settings)
        assert storage is not None
        self._storage = storage

    async def add_project(self) -> UUID:
        """Makes a project."""
        project = new_uuid()
        sql = "INSERT INTO projects (id, name) VALUES (%(id)s, %(id)s::text)"
        await run_sql(self.pool, sql, {"id": project})
        return project

    async def fill(self, project: UUID | None = None, text: str = TEXT) -> None:
        """Makes a store with a file of this text."""
        project, file = project or self._database.project, new_uuid()
        values: dict[str, Any] = dict.fromkeys(("days", "description", "dimensions", "media_type"))
        values |= dict.fromkeys(("lifetime", "batch"))
        values |= {"id": self.store, "project": project, "name": "", "metadata": Json({})}
        values |= {"model": self.settings.retrieval.embedding_model, "language": "simple"}
        await execute(self.pool, vector_stores.INSERT_STORE, values)
        values |= {"id": file, "filename": "a.txt", "purpose": "assistants", "bytes": len(text)}
        await fetch(self.pool, files.INSERT_FILE, values | {"upload_time": HOUR})
        await write_part(self.pool, self._storage, file, _pieces(text), number=0, upload_time=HOUR)
        await fetch(self.pool, files.COMPLETE_FILE, values)
        values |= {"store": self.store, "ids": Uuids([new_uuid()]), "files": Uuids([file])}
        values |= {"attributes": Texts(["{}"]), "max_tokens": Ints([100]), "overlaps": Ints([0])}
        await fetch(self.pool, vector_stores.INSERT_ENTRIES, values)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Ingest]:
        """A process that ingests; it stops at the end."""
        embedder = Embedder(self.settings.retrieval, ProjectRoutes(self.settings))
        policies = ProjectPolicies(self.pool, AccessRevision())
        ingest = Ingest(self.settings, self.pool, self._storage, embedder, policies)
        poll = DuePoll(self.pool, "worker")
        tasks = {asyncio.create_task(work) for work in (ingest.run(poll), poll.run())}
        try:
            yield ingest
        finally:
            await cancel_all(tasks)
            await embedder.close()

    async def make_due(self) -> None:
        """The lease of whoever has the entry ends."""
        await run_sql(self.pool, "UPDATE vector_store_files SET next_attempt_at = now()", {})

    async def end_pause(self) -> None:
        """The entry is due now, if nobody has it: a crash is counted until it is given back."""
        due = "UPDATE vector_store_files SET next_attempt_at = now() WHERE crashes = 0"
        await run_sql(self.pool, due, {})

    async def state(self) -> tuple[str, int]:
        """The status of the file, and how many chunks are stored."""
        [row] = await run_sql(self.pool, "SELECT status, chunks FROM vector_store_files", {})
        return row["status"], row["chunks"]

    async def until_state(self, wanted: str, chunks: int) -> None:
        async def is_so() -> bool:
            return await self.state() == (wanted, chunks)

        await until(is_so, 20)

    async def chunks(self) -> list[str]:
        """The stored texts, in order."""
        sql = "SELECT number, text FROM vector_store_chunks ORDER BY number"
        rows = await run_sql(self.pool, sql, {})
        assert [row["number"] for row in rows] == list(range(len(rows)))
        return [row["text"] for row in rows]


def _room(free: int, *busy: UUID, reserve: int = 0) -> dict[str, object]:
    """The values of TAKE_ENTRIES."""
    values = {"free": free, "free_for_newcomers": free + reserve, "busy": Uuids(busy)}
    return values | {"lease": HOUR}


async def _pieces(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


def _wait_for(event: asyncio.Event) -> Step:
    async def step(_: Exchange) -> None:
        await event.wait()

    return step


MakeStores = Callable[[str], Any]


@pytest.fixture
def make_stores(
    database_server: Databases, fake: FakeUpstream, tmp_path: Path
) -> Callable[[str], Any]:
    """Opens `Stores` whose embeddings this model makes, two texts at a time."""

    @asynccontextmanager
    async def open_stores(model: str) -> AsyncIterator[Stores]:
        dsn = await database_server.create_copy()
        settings = settings_for(dsn).model_copy(
            update={
                "files": FileSettings(folder=tmp_path),
                "upstream": UpstreamSettings(base_url=fake.base_url),
                "retrieval": RetrievalSettings(
                    embedding_model=model, embedding_batch=2, index_from=CHUNKS
                ),
            }
        )
        pool = open_pool(settings, "test", 4)
        await pool.open(wait=True)
        database = SeededDatabase(pool, dsn)
        await database.create_project()
        stores = Stores(database, settings)
        await stores.fill()
        yield stores
        await pool.close()

    return open_stores


async def test_another_worker_goes_on_at_the_first_chunk_that_is_not_stored(
    make_stores: MakeStores, fake: FakeUpstream
) -> None:
    """The first worker dies while its third group of chunks is being embedded. The second one is
    frozen there, and answered when a third one has completed the file."""
    thawed = asyncio.Event()
    steps: dict[int, list[Step]] = {3: [hang()], 5: [_wait_for(thawed)]}
    count = 0

    def decide(request: UpstreamRequest) -> Script:
        nonlocal count
        count += 1
        return [*steps.get(count, []), *embeddings(request)]

    fake.decide("dying", decide)
    async with make_stores("dying") as stores:
        async with stores.worker():
            await stores.until_state("in_progress", 4)
            await until(lambda: count == 3)
        await stores.make_due()
        async with stores.worker():
            await stores.until_state("in_progress", 6)
            await until(lambda: count == 5)
            await stores.make_due()
            async with stores.worker():
                await stores.until_state("completed", CHUNKS)
            thawed.set()
            await until(lambda: not any(each.is_open for each in fake.requests_for("dying")))
        assert await stores.state() == ("completed", CHUNKS)
        texts = await stores.chunks()
        assert " ".join(texts).split() == TEXT.split()
        paid = Counter(text for each in fake.requests_for("dying") for text in each.body["input"])
        assert [paid[text] for text in texts] == [1, 1, 1, 1, 2, 2, 2, 2, 1]


async def test_a_worker_whose_lease_ended_while_it_was_frozen_embeds_nothing_more(
    make_stores: MakeStores, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is frozen while its second group is embedded."""
    thawed = asyncio.Event()
    fake.decide("frozen", lambda request: [_wait_for(thawed), *embeddings(request)])
    async with make_stores("frozen") as stores, stores.worker() as ingest:
        await until(lambda: fake.requests_for("frozen"))
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + LEASE.total_seconds())
        with monkeypatch.context() as frozen:
            frozen.setattr(fence, "time", later)
            thawed.set()
            await until(lambda: not ingest._due.running)
        assert await stores.state() == ("in_progress", 2)
        await stores.make_due()
        await stores.until_state("completed", CHUNKS)
        paid = Counter(text for each in fake.requests_for("frozen") for text in each.body["input"])
        assert [paid[text] for text in await stores.chunks()] == [1] * CHUNKS


@pytest.mark.parametrize("at_its_end", [False, True], ids=["while it embeds", "at its end"])
async def test_chunks_that_a_failover_has_lost_are_stored_again(
    make_stores: MakeStores,
    fake: FakeUpstream,
    monkeypatch: pytest.MonkeyPatch,
    *,
    at_its_end: bool,
) -> None:
    """The worker goes on, and what it had stored is not there any more."""
    count, end = 0, Ingest._end
    failover, is_over = asyncio.Event(), asyncio.Event()

    async def _end(*values: Any) -> None:
        failover.set()
        await is_over.wait()
        await end(*values)

    def decide(request: UpstreamRequest) -> Script:
        nonlocal count
        count += 1
        if count < 3 or at_its_end:
            return embeddings(request)
        failover.set()
        return [_wait_for(is_over), *embeddings(request)]

    if at_its_end:
        monkeypatch.setattr(Ingest, "_end", _end)
    fake.decide("lossy", decide)
    async with make_stores("lossy") as stores, stores.worker():
        await until(failover.is_set)
        await run_sql(stores.pool, "DELETE FROM vector_store_chunks WHERE number >= 2", {})
        await run_sql(stores.pool, "UPDATE vector_store_files SET chunks = 2", {})
        is_over.set()

        async def is_stored_again() -> bool:
            await stores.make_due()
            return bool(await stores.state() == ("completed", CHUNKS))

        await until(is_stored_again, 20, every=0.5)
        assert " ".join(await stores.chunks()).split() == TEXT.split()


async def test_a_file_whose_workers_die_is_given_up_and_no_other_is_blamed(
    make_stores: MakeStores, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files are ingested when the worker dies for the first time."""

    async def die(*_: object) -> None:
        """A worker that is killed gives nothing back."""

    monkeypatch.setattr(Ingest, "_give_back", die)
    asked: Counter[str] = Counter()

    def decide(request: UpstreamRequest) -> Script:
        file, *_ = request.body["input"][0].split()
        asked[file] += 1
        return [hang()] if file == "chunk" or asked[file] == 1 else embeddings(request)

    fake.decide("deadly", decide)
    async with make_stores("deadly") as stores:
        stores.store, other = new_uuid(), new_uuid()
        sql = "INSERT INTO projects (id, name) VALUES (%(id)s, 'other')"
        await run_sql(stores.pool, sql, {"id": other})
        await stores.fill(other, TEXT.replace("chunk", "piece"))
        for times in range(1, 6):
            async with stores.worker():
                await until(partial(_has_at_least, asked, "chunk", times), 20)
                await until(lambda: asked["piece"])
            await stores.make_due()
        async with stores.worker():
            ended = "SELECT status FROM vector_store_files ORDER BY project_id = %(id)s"

            async def have_ended() -> bool:
                rows = await run_sql(stores.pool, ended, {"id": other})
                return [row["status"] for row in rows] == ["failed", "completed"]

            await until(have_ended, 20)
        assert asked["chunk"] == 5


def _has_at_least(counter: Counter[str], name: str, count: int) -> bool:
    return counter[name] >= count


async def test_an_upstream_that_is_away_is_waited_for_and_one_that_refuses_fails_the_file(
    make_stores: MakeStores, fake: FakeUpstream
) -> None:
    count = 0

    def decide(request: UpstreamRequest) -> Script:
        nonlocal count
        count += 1
        if count == 2:
            return [status(503)]
        if count == 4:
            body = error_body("Not so: upstream-secret", "invalid_request_error", None)
            return [status(400, body)]
        return embeddings(request)

    fake.decide("away", decide)
    async with make_stores("away") as stores, stores.worker():
        await stores.until_state("failed", 4)
        sql = "SELECT error_code, error_message FROM vector_store_files"
        [row] = await run_sql(stores.pool, sql, {})
        assert row["error_code"] == "server_error"
        assert row["error_message"].startswith("The text could not be embedded: Not so")
        assert count == 4
        await _check_purge(stores)


async def test_what_was_stored_of_a_cancelled_file_is_deleted(
    make_stores: MakeStores, fake: FakeUpstream
) -> None:
    model = "cancelled"
    release = asyncio.Event()
    fake.decide(
        model,
        lambda request: (
            [_wait_for(release), *embeddings(request)]
            if "chunk 2" in request.body["input"][0]
            else embeddings(request)
        ),
    )
    async with make_stores(model) as stores, stores.worker():
        await stores.until_state("in_progress", 2)
        batch = {"id": new_uuid(), "store": stores.store}
        made = "INSERT INTO vector_store_file_batches (id, store_id) VALUES (%(id)s, %(store)s)"
        await run_sql(stores.pool, made, batch)
        await run_sql(stores.pool, "UPDATE vector_store_files SET batch_id = %(id)s", batch)
        actor = Actor(ActorKind.OPERATOR)
        entry = AuditEntry(actor, "vector_store.batch.cancel", "x")
        assert await fetch(stores.pool, vector_stores.CANCEL_FILE_BATCH, batch | entry.values())
        release.set()
        assert await stores.state() == ("cancelled", 2)
        await _check_purge(stores)


async def _check_purge(stores: Stores) -> None:
    """Nothing of a file that failed or was cancelled is paid for, and the purge deletes it."""
    status, _ = await stores.state()
    [row] = await run_sql(stores.pool, "SELECT usage_bytes FROM vector_store_files", {})
    assert row["usage_bytes"] == 0
    assert await stores.chunks()
    await run_purge(stores.settings)
    assert (await stores.chunks(), await stores.state()) == ([], (status, 0))


async def test_chunks_that_are_too_large_for_the_upstream_are_embedded_in_parts(
    make_stores: MakeStores, fake: FakeUpstream
) -> None:
    words = "input is too large to process. increase the physical batch size"

    def decide(request: UpstreamRequest) -> Script:
        if any(len(text) > 150 for text in request.body["input"]):
            return [status(500, error_body(words, "server_error", None))]
        return embeddings(request)

    fake.decide("small", decide)
    async with make_stores("small") as stores, stores.worker():
        await stores.until_state("completed", CHUNKS)
        assert " ".join(await stores.chunks()).split() == TEXT.split()


async def test_a_text_to_which_the_upstream_always_answers_with_its_own_error_fails_the_file(
    make_stores: MakeStores, fake: FakeUpstream
) -> None:
    def decide(request: UpstreamRequest) -> Script:
        if any("chunk 4" in text for text in request.body["input"]):
            return [status(500, error_body("Something broke.", "server_error", None))]
        return embeddings(request)

    fake.decide("breaking", decide)
    async with make_stores("breaking") as stores, stores.worker():
        assert await _message_of_failure(stores) == (
            "The text could not be embedded: Something broke."
        )


@pytest.mark.long
async def test_an_unexpected_error_fails_the_file_after_a_few_tries(
    make_stores: MakeStores, fake: FakeUpstream
) -> None:
    """Each of them pays the embedding model."""
    fake.decide("paid", embeddings)
    async with make_stores("paid") as stores:
        await run_sql(stores.pool, "UPDATE vector_stores SET language = 'none such'", {})
        async with stores.worker():
            assert await _message_of_failure(stores) == (
                "The file could not be ingested because of an error of this server."
            )


async def _message_of_failure(stores: Stores) -> str:
    async def has_failed() -> bool:
        await stores.end_pause()
        state, _ = await stores.state()
        return bool(state == "failed")

    await until(has_failed, 30)
    [row] = await run_sql(stores.pool, "SELECT error_message FROM vector_store_files", {})
    return str(row["error_message"])


async def test_the_ingest_of_a_deleted_store_is_stopped(
    make_stores: MakeStores, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_module, "_RENEWAL", 0.02)
    model = fake.script([hang()])
    async with make_stores(model) as stores, stores.worker():
        await until(lambda: len(fake.requests_for(model)) == 1)
        await run_sql(stores.pool, "UPDATE vector_stores SET delete_requested_at = now()", {})
        await until(lambda: fake.requests_for(model)[0].closed_by_client is not None)
        assert await stores.chunks() == []


async def test_a_project_does_not_wait_for_all_files_of_another(make_stores: MakeStores) -> None:
    async with make_stores("unused") as stores:
        other = await stores.add_project()
        for project in (stores.project, stores.project, other):
            stores.store = new_uuid()
            await stores.fill(project)
        taken = [await fetch(stores.pool, TAKE_ENTRIES, _room(2)) for _ in range(3)]
        first, *others = [{entry.project_id for entry in entries} for entries in taken]
        assert first == {stores.project, other}
        assert others == [{stores.project}, {stores.project}]


async def test_slots_of_the_reserve_are_for_projects_without_a_file_in_work(
    make_stores: MakeStores,
) -> None:
    async with make_stores("unused") as stores:
        many, second, third = stores.project, await stores.add_project(), await stores.add_project()
        for project in (many, many, second, second, third):
            stores.store = new_uuid()
            await stores.fill(project)

        async def take(room: dict[str, object]) -> list[UUID]:
            taken = await fetch(stores.pool, TAKE_ENTRIES, room)
            return [entry.project_id for entry in taken]

        assert await take(_room(0, many, many, second, reserve=1)) == [third]
        assert await take(_room(0, many, many, second, third, reserve=1)) == []
        # A slot for anybody goes to the one that has least.
        assert await take(_room(1, many, many, second)) == [second]


async def test_a_file_that_could_not_be_read_is_not_read_again_for_other_stores(
    make_stores: MakeStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_stores("unused") as stores:
        stores.store = new_uuid()
        await stores.fill(text=" ")
        same_file = "SELECT file_id FROM vector_store_files ORDER BY id DESC LIMIT 1"
        await run_sql(stores.pool, f"UPDATE vector_store_files SET file_id = ({same_file})", {})
        reads = []

        def extract(*given: Any) -> Any:
            reads.append(given)
            return extraction.extract(*given)

        monkeypatch.setattr(ingest_module, "extract", extract)
        one = stores.settings.retrieval.model_copy(update={"ingests": 1})
        stores.settings = stores.settings.model_copy(update={"retrieval": one})

        async def have_ended() -> bool:
            sql = "SELECT error_code FROM vector_store_files WHERE status = 'failed'"
            codes = [row["error_code"] for row in await run_sql(stores.pool, sql, {})]
            return codes == ["invalid_file"] * 2

        async with stores.worker():
            await until(have_ended, 20)
        assert len(reads) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a file has a name for a moment")
async def test_a_worker_that_is_killed_leaves_no_copy_of_a_file(
    make_stores: MakeStores, fake: FakeUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    model = fake.script([hang()], name="copied")
    async with make_stores(model) as stores, stores.worker():
        await until(lambda: fake.requests_for(model))
        assert [name for name in _open_files() if name.startswith(str(folder))]
        # They have no names there, so they end with the process.
        assert list(folder.iterdir()) == []


def _open_files() -> list[str]:
    names = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            names.append(str(link.readlink()))
    return names


async def test_a_large_store_is_searched_by_an_index_of_its_own_until_it_is_deleted(
    make_stores: MakeStores, fake: FakeUpstream
) -> None:
    fake.decide("indexed", embeddings)
    async with make_stores("indexed") as stores, stores.worker():
        sql = "SELECT has_index FROM vector_stores"

        async def has_index() -> Any:
            return (await run_sql(stores.pool, sql, {}))[0]["has_index"]

        await until(has_index, 20)
        values = {
            "store": stores.store,
            "project": stores.project,
            "filter": None,
            "limit": 5,
            "embedding": json.dumps(embed("chunk 3")),
        }
        exact = await fetch(stores.pool, NEAREST_CHUNKS, values)
        by_index = values | {"dimensions": DIMENSIONS, "most": 10}
        async with stores.pool.connection() as connection:
            # The planner would read so small a table as a whole.
            await connection.execute("SET enable_sort = off; SET enable_seqscan = off")
            found = await fetch(connection, NEAREST_CHUNKS_BY_INDEX, by_index)
            await connection.execute("RESET enable_sort; RESET enable_seqscan")
        assert (len(exact), exact[0].number) == (5, 3)
        assert [each.value for each in found] == [each.value for each in exact]
        assert found[0] == exact[0]
        used = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = %(name)s"
        name = {"name": index_name(stores.store)}

        async def was_used() -> bool:
            rows = await run_sql(stores.pool, used, name)
            return bool(rows) and rows[0]["idx_scan"] > 0

        await until(was_used)
        await run_sql(stores.pool, "UPDATE vector_stores SET delete_requested_at = now()", {})
        await run_purge(stores.settings)
        assert await run_sql(stores.pool, used, name) == []


async def test_an_index_whose_worker_has_died_is_made_without_another_file(
    make_stores: MakeStores, fake: FakeUpstream
) -> None:
    fake.decide("abandoned", embeddings)
    async with make_stores("abandoned") as stores:
        name = index_name(stores.store)
        is_valid = f"SELECT indisvalid FROM pg_index WHERE indexrelid = '{name}'::regclass"

        async def is_made() -> bool:
            rows = await run_sql(stores.pool, "SELECT has_index FROM vector_stores", {})
            return bool(rows[0]["has_index"])

        async with stores.worker():
            await until(is_made, 20)
        # As a worker leaves it that dies while it makes it.
        await run_sql(stores.pool, "UPDATE vector_stores SET has_index = false", {})
        invalid = f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{name}'::regclass"
        await run_sql(stores.pool, invalid, {})
        async with stores.worker():
            await until(is_made, 20)
        assert await run_sql(stores.pool, is_valid, {}) == [{"indisvalid": True}]


async def test_the_search_by_words_is_planned_for_its_words_each_time(
    make_stores: MakeStores,
) -> None:
    """A prepared statement gets a plan for all values after some runs, which is ten times as
    slow in a store of 60 000 chunks."""
    async with make_stores("words") as stores, stores.pool.connection() as connection:
        values = {"store": stores.store, "project": stores.project, "filter": None, "limit": 9}
        values |= {"query": "chunk", "language": "simple", "store_word": "'x'", "ranked": 9}
        for _ in range(7):
            await fetch(connection, CHUNKS_WITH_WORDS, values)
        prepared = "SELECT 1 FROM pg_prepared_statements WHERE statement LIKE '%%ts_rank%%'"
        assert await run_sql(connection, prepared, {}) == []


async def test_pgvector_that_comes_later_is_used_after_the_next_migration(
    database_server: Databases,
) -> None:
    dsn = await database_server.create_copy()
    pool = open_pool(settings_for(dsn), "test", 2)
    await pool.open(wait=True)
    drop = "ALTER TABLE vector_store_chunks DROP COLUMN embedding"
    await run_sql(pool, drop, {})
    assert await fetch(pool, HAS_EMBEDDINGS, {}) == [False]
    await asyncio.to_thread(migrate, dsn)
    assert await fetch(pool, HAS_EMBEDDINGS, {}) == [True]
    await pool.close()
