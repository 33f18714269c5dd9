"""In which schema of the database the tables are, and the statement that makes a session use it
(docs/deploy.md).

Every session begins with that statement. PgBouncer refuses or drops `options` of a connection, and
a `search_path` of the role or of the database belongs to the operator.
"""

from typing import Final

DEFAULT_SCHEMA: Final = "backburner"
"""The schema of a new installation."""
_OWN_TABLES: Final = ("alembic_version", "event_log", "idempotency_keys", "journal", "workers")
"""A schema that has all of these holds an installation. Another application has some of them at
most: `alembic_version` is that of every application that uses Alembic."""

_NAMES = ", ".join(f"'{name}'" for name in _OWN_TABLES)
_FIND = f"""
    SELECT set_config('search_path', coalesce(
        (SELECT quote_ident(s.name)
         FROM unnest(array_prepend('{DEFAULT_SCHEMA}'::name, current_schemas(false)))
              WITH ORDINALITY AS s (name, position)
         WHERE (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = s.name AND c.relname IN ({_NAMES})) = {len(_OWN_TABLES)}
         ORDER BY s.position LIMIT 1),
        '{DEFAULT_SCHEMA}'), false)
"""  # noqa: S608 - made of constants


def set_search_path(schema: str | None) -> bytes:
    """The statement after which a session finds the tables by their names, and nothing else beside
    what Postgres itself has. `schema`: the setting `database_schema`.

    None: the schema `backburner` if the tables are there, else the one in the role's own search
    path where they are (an installation of a release that had no schema of its own), else
    `backburner`. Read in a catalog, so no permission is needed and nothing is created.
    """
    if schema is None:
        return _FIND.encode()
    return f"""SET search_path = "{schema}\"""".encode()
