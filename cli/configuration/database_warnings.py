"""What an operator should change about the database."""

from collections.abc import Iterator

import psycopg
from psycopg.rows import TupleRow

from cli.settings import NO_DATABASE
from models.config.settings import Settings
from models.db.search_path import set_search_path

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
