"""What an operator should change about the database, the bucket of files and this system."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import psycopg
from psycopg.rows import TupleRow

from cli.settings import NO_DATABASE
from models.config.settings import Settings
from models.confinement.policy import missing
from models.db.sync import set_search_path
from models.files.opening import open_storage
from models.files.storage import FileStorage, StorageError

_CONSEQUENCES = {
    "landlock": "could read each file of its user; Linux has it since 5.13, and Docker Engine "
    "allows it since 23.0",
    "seccomp": "could open connections; there are filters for x86-64 and ARM64",
}
_CONTENT = b"backburner config check"

_IS_SUPERUSER = "SELECT current_user, current_setting('is_superuser')::bool"
_VECTORS = """
    SELECT to_regclass('vector_store_chunks') IS NOT NULL,
           EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('vector_store_chunks')
                   AND attname = 'embedding' AND NOT attisdropped),
           EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'vector'),
           (SELECT extversion FROM pg_extension WHERE extname = 'vector')
"""


def database_warnings(settings: Settings) -> list[str]:
    """A sentence for each. None if the database is not set, or does not answer: a configuration can
    be checked without it."""
    if settings.dsn == NO_DATABASE:
        return []
    try:
        with psycopg.connect(settings.dsn, connect_timeout=3) as connection:
            connection.execute(set_search_path(settings.database_schema))
            return [*_of_role(connection), *_of_vectors(connection)]
    except psycopg.Error:
        return []


def _of_role(connection: psycopg.Connection[TupleRow]) -> Iterator[str]:
    row = connection.execute(_IS_SUPERUSER).fetchone()
    if row is not None and row[1]:
        yield (
            f"the role {row[0]} of DATABASE_URL is a superuser; one that owns its database is "
            "enough (docs/security.md)"
        )


def _of_vectors(connection: psycopg.Connection[TupleRow]) -> Iterator[str]:
    """Vector stores are refused where the tables have no embeddings."""
    row = connection.execute(_VECTORS).fetchone()
    if row is None:
        return
    has_tables, has_embeddings, is_available, version = row
    if not has_tables or has_embeddings:
        return
    if version is not None:
        remedy = (
            f"its pgvector {version} is older than 0.8, or came after the last migration: update "
            "it with ALTER EXTENSION vector UPDATE"
        )
    elif is_available:
        remedy = "let a superuser run CREATE EXTENSION vector in it"
    else:
        remedy = "install pgvector 0.8 or later on its server, run CREATE EXTENSION vector in it"
    yield (
        f"vector stores are refused, because the database has no embeddings: {remedy}; then run "
        "`backburner migrate` (docs/vector-stores.md)"
    )


def storage_warnings(settings: Settings) -> list[str]:
    """A sentence if an object cannot be written, read and deleted there. None for a folder: the
    processes may run as another user."""
    storage = None if settings.s3.bucket is None else open_storage(settings)
    if storage is None:
        return []
    try:
        asyncio.run(_try_out(storage))
    except StorageError as error:
        return [f"files cannot be stored: {error}"]
    return []


async def _try_out(storage: FileStorage) -> None:
    key = f"check/{uuid.uuid4().hex}"
    try:
        await storage.check()
        await storage.write(key, _content())
        async with aclosing(storage.read(key, 0, len(_CONTENT))) as chunks:
            async for _ in chunks:
                pass
        await storage.discard(key)
    finally:
        await storage.close()


async def _content() -> AsyncIterator[bytes]:
    yield _CONTENT


def confinement_warnings() -> list[str]:
    """A sentence for each protection that is missing (docs/file-kinds.md)."""
    return [
        f"without {name} a file that takes over its reading process {_CONSEQUENCES[name]}"
        for name in missing()
    ]
