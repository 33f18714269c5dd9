"""In which schema of the database the tables are, and the statement that makes a session use it
(docs/deploy.md).

Every session begins with that statement. PgBouncer refuses or drops `options` of a connection, and
a `search_path` of the role or of the database belongs to the operator.
"""

from models.config.addresses import DEFAULT_SCHEMA


def set_search_path(schema: str = DEFAULT_SCHEMA) -> bytes:
    """The statement after which a session finds the tables by their names, and nothing else beside
    what Postgres itself has. `schema`: the setting `database_schema`."""
    return f"""SET search_path = "{schema}\"""".encode()
