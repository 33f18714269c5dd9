"""What is stored of files: a content in parts, and nothing that belongs to no file."""

import hashlib
import os
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from features.files import queries as files
from features.files.web import FILE_GAUGES
from models.config.feature_groups import FileSettings
from models.config.settings import Settings
from models.db.database import fetch, open_pool
from models.db.queries import file_contents
from models.files.content import FileGone, read_content, write_part
from models.files.folder_storage import FolderStorage
from models.files.opening import open_storage
from models.files.storage import FileStorage, StorageError, part_key
from models.ids import new_uuid
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, run_purge, settings_for

HOUR = timedelta(hours=1)


class StoredFiles:
    """A database and a storage."""

    def __init__(
        self, database: SeededDatabase, settings: Settings, objects: Callable[[], set[str]]
    ) -> None:
        """`objects`: lists the keys of all stored objects."""
        self.database = database
        self.pool = database.pool
        self.settings = settings
        self.objects = objects
        storage = open_storage(settings)
        assert storage is not None
        self.storage: FileStorage = storage

    async def create(self, lifetime: timedelta | None = None) -> UUID:
        """A file that is being written."""
        values: dict[str, object] = {"purpose": "user_data", "bytes": 0, "upload_time": HOUR}
        values |= {"media_type": None}
        values |= {"id": new_uuid(), "filename": "a.txt", "lifetime": lifetime}
        [file] = await fetch(
            self.pool, files.INSERT_FILE, values | {"project": self.database.project}
        )
        return file

    async def write(self, file: UUID, *chunks: bytes, number: int | None = 0) -> None:
        """Adds a part."""
        await write_part(
            self.pool, self.storage, file, _iterate(*chunks), number=number, upload_time=HOUR
        )

    async def complete(self, file: UUID, size: int = 1) -> None:
        """Makes it visible."""
        values: dict[str, object] = {"id": file, "bytes": size}
        values |= dict.fromkeys(("media_type", "purpose", "lifetime"))
        assert await fetch(self.pool, files.COMPLETE_FILE, values)

    async def read(self, file: UUID, start: int = 0, length: int | None = None) -> bytes:
        """Its content."""
        parts = await fetch(self.pool, files.FILE_PARTS, {"id": file})
        chunks = read_content(self.storage, parts, start, length)
        return b"".join([chunk async for chunk in chunks])

    async def rows(self) -> int:
        """Rows of files and parts."""
        count = "SELECT (SELECT count(*) FROM files) + (SELECT count(*) FROM file_parts) AS count"
        [row] = await run_sql(self.pool, count)
        assert isinstance(row["count"], int)
        return row["count"]


async def _iterate(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


@pytest.fixture(params=["folder", "s3"])
async def stored(
    request: pytest.FixtureRequest, database_server: Databases, tmp_path: Path
) -> AsyncIterator[StoredFiles]:
    folder = tmp_path / "files"
    changes: dict[str, object] = {"files": FileSettings(folder=folder)}
    objects = partial(_files_below, folder)
    if request.param == "s3":
        bucket = request.getfixturevalue("s3_server").create_bucket()
        changes["s3"] = bucket.settings()
        objects = bucket.objects
    dsn = await database_server.create_copy()
    pool = open_pool(settings_for(dsn), "file-tests", 4)
    await pool.open(wait=True)
    database = SeededDatabase(pool, dsn)
    await database.create_project()
    stored = StoredFiles(database, settings_for(dsn).model_copy(update=changes), objects)
    yield stored
    await stored.storage.close()
    await pool.close()


def _files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_a_content_in_parts_is_read_from_any_byte_on(stored: StoredFiles) -> None:
    file = await stored.create()
    whole = os.urandom(700_001)
    await stored.write(file, whole[300_000:], number=1)
    await stored.write(file, whole[:7], whole[7:300_000], number=0)
    await stored.complete(file, len(whole))
    assert hashlib.sha256(await stored.read(file)).digest() == hashlib.sha256(whole).digest()
    for start, length in ((0, 1), (299_999, 2), (300_000, 1), (299_000, 300_000), (700_000, 50)):
        assert await stored.read(file, start, length) == whole[start : start + length]


async def test_the_purge_deletes_what_a_dead_writer_has_left(stored: StoredFiles) -> None:
    """It was killed before the object was complete, or before its row was."""
    file = await stored.create()
    part = new_uuid()
    assert await fetch(stored.pool, file_contents.INSERT_PART, {"id": file, "part": part})
    await stored.storage.write(part_key(part), _iterate(b"half"))
    await run_purge(stored.settings)
    assert stored.objects() == {part_key(part)}  # its writer may be alive
    await run_sql(stored.pool, "UPDATE files SET expires_at = now() - interval '1 s'")
    await run_purge(stored.settings)
    assert stored.objects() == {part_key(part)}
    await run_sql(stored.pool, "UPDATE file_parts SET created_at = now() - interval '3 hours'")
    await run_purge(stored.settings)
    assert not stored.objects()
    assert await stored.rows() == 0


async def test_the_purge_deletes_expired_and_deleted_files_with_their_objects(
    stored: StoredFiles,
) -> None:
    kept, expired = await stored.create(), await stored.create(timedelta(hours=2))
    deleted = await stored.create()
    for file in (kept, expired, deleted):
        await stored.write(file, b"content", number=0)
        await stored.write(file, b"unused", number=None)
        await stored.complete(file, 7)
    await run_sql(
        stored.pool,
        "UPDATE files SET expires_at = now() - interval '1 s' WHERE id = %(id)s",
        {"id": expired},
    )
    await run_sql(
        stored.pool,
        "UPDATE files SET delete_requested_at = now() WHERE id = %(id)s",
        {"id": deleted},
    )
    await run_sql(stored.pool, "UPDATE file_parts SET created_at = now() - interval '3 hours'")
    await run_purge(stored.settings)
    assert await stored.read(kept) == b"content"
    assert len(stored.objects()) == 1
    assert await stored.rows() == 2


async def test_a_deleted_file_stays_while_responses_run_that_may_use_it(
    stored: StoredFiles,
) -> None:
    file = await stored.create()
    await stored.write(file, b"content")
    await stored.complete(file, 7)
    await stored.database.create_response(background=True)
    await run_sql(stored.pool, "UPDATE files SET delete_requested_at = now()")
    for minutes, rows in ((-1, 2), (1, 0)):
        made = f"UPDATE responses SET created_at = now() + interval '{minutes} min'"
        await run_sql(stored.pool, made)
        await run_purge(stored.settings)
        assert await stored.rows() == rows


async def test_operators_see_how_much_is_stored(stored: StoredFiles) -> None:
    for size in (3, 4):
        await stored.complete(await stored.create(), size)
    await stored.create()  # is being uploaded
    await FILE_GAUGES.refresh(stored.pool)
    values = {
        (sample.name, sample.labels["purpose"]): sample.value
        for family in FILE_GAUGES.collect()
        for sample in family.samples
    }
    assert values["backburner_files", "user_data"] == 2
    assert values["backburner_file_bytes", "user_data"] == 7
    assert values["backburner_files", "batch"] == 0


async def test_a_part_that_fails_is_not_stored(stored: StoredFiles) -> None:
    file = await stored.create()

    async def breaks() -> AsyncIterator[bytes]:
        yield b"first"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await write_part(stored.pool, stored.storage, file, breaks(), number=0, upload_time=HOUR)
    await stored.write(file, b"content")
    with pytest.raises(psycopg.errors.UniqueViolation):
        await stored.write(file, b"another", number=0)
    await stored.complete(file)
    with pytest.raises(FileGone):
        await stored.write(file, b"more", number=1)
    assert len(stored.objects()) == 1
    assert await stored.rows() == 2


async def test_a_lost_object_is_an_error_and_no_shorter_content(stored: StoredFiles) -> None:
    file = await stored.create()
    await stored.write(file, b"content")
    [key] = stored.objects()
    await stored.storage.delete(key)
    await stored.storage.write(key, _iterate(b"con"))
    with pytest.raises(StorageError):
        await stored.read(file)
    await stored.storage.delete(key)
    with pytest.raises(StorageError):
        await stored.read(file)
    await stored.storage.delete(key)


async def test_a_folder_that_cannot_be_written_is_an_error_of_the_storage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match=r"Not a directory|File exists"):
        await FolderStorage(tmp_path / "file").write("ab/cd", _iterate(b"x"))
