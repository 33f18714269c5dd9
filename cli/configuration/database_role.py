"""Whether the role of the database may do more than the server needs."""

import psycopg

from cli.settings import NO_DATABASE
from models.config.settings import Settings

_IS_SUPERUSER = "SELECT current_user, current_setting('is_superuser')::bool"


def role_warnings(settings: Settings) -> list[str]:
    """A sentence if the role is a superuser. None if the database is not set, or does not answer:
    a configuration can be checked without it."""
    if settings.dsn == NO_DATABASE:
        return []
    try:
        with psycopg.connect(settings.dsn, connect_timeout=3) as connection:
            row = connection.execute(_IS_SUPERUSER).fetchone()
    except psycopg.Error:
        return []
    if row is None or not row[1]:
        return []
    warning = (
        f"the role {row[0]} of DATABASE_URL is a superuser; one that owns its database is enough "
        "(docs/security.md)"
    )
    return [warning]
