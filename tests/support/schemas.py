"""Databases whose tables are elsewhere than in the schema `backburner`, or not alone there."""

from typing import LiteralString

import psycopg

from tests.support.stack import Databases

TO_PUBLIC = """
    DO $$ DECLARE name text; BEGIN
        FOR name IN SELECT relname FROM pg_class
                    WHERE relkind = 'r' AND relnamespace = 'backburner'::regnamespace LOOP
            EXECUTE format('ALTER TABLE backburner.%I SET SCHEMA public', name);
        END LOOP;
    END $$;
    ALTER FUNCTION backburner.count_access_change() SET SCHEMA public;
    ALTER FUNCTION backburner.refuse_audit_change() SET SCHEMA public;
    ALTER FUNCTION backburner.deliver_end_of_response() SET SCHEMA public;
    ALTER FUNCTION backburner.end_event(text, uuid, text) SET SCHEMA public;
    ALTER FUNCTION backburner.add_embeddings() SET SCHEMA public;
    ALTER FUNCTION backburner.embedding_of(text) SET SCHEMA public;
    ALTER FUNCTION backburner.embedding_distance SET SCHEMA public;
    ALTER FUNCTION backburner.nearest_chunks SET SCHEMA public;
    ALTER EXTENSION vector SET SCHEMA public;
    DROP SCHEMA backburner;
"""
"""Makes of a database what a release before the schema `backburner` would have made."""


class ChangedDatabases(Databases):
    """The databases of a server; each copy is changed by a script before it is used."""

    def __init__(self, server_databases: Databases, script: LiteralString) -> None:
        super().__init__(server_databases.admin_url, None)
        self._databases = server_databases
        self._script = script

    async def create_copy(self) -> str:
        """Returns the URL of a new database after the script."""
        dsn = await self._databases.create_copy()
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute(self._script)
        return dsn
