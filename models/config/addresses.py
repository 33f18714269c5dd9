"""What the addresses of the database and of Redis must look like, and names of schemas.

Without pydantic, because the commands of an operator use them too: its import takes longer than a
whole command (cli/addresses.py).
"""

import re

DATABASE_SCHEMES = ("postgres", "postgresql", "postgresql+psycopg")
REDIS_SCHEMES = ("redis", "rediss", "unix", "sentinel")
CELL_NAME = "[a-z0-9]{1,12}"
"""What the setting `cell` looks like."""
DEFAULT_SCHEMA = "backburner"
"""What the setting `database_schema` is if it is not set."""
SCHEMA_NAME_RULE = (
    "must be up to 63 of a-z, 0-9 and _, not begin with a digit or pg_, and not be"
    " information_schema"
)


def normalise_database_url(url: str) -> str:
    """The address as libpq reads it (`postgresql://…`). Raises ValueError, without repeating the
    URL, which has a password."""
    scheme, colon, address = url.partition("://")
    if not colon or scheme not in DATABASE_SCHEMES:
        raise ValueError("must start with postgres://, postgresql:// or postgresql+psycopg://")
    return f"postgresql://{address}"


def require_redis_scheme(url: str) -> None:
    """Raises ValueError, without repeating the URL, which has a password."""
    if not url.startswith(tuple(f"{scheme}://" for scheme in REDIS_SCHEMES)):
        raise ValueError("must start with redis://, rediss://, unix:// or sentinel://")


def require_schema_name(name: str) -> None:
    """Raises ValueError for a name that needs quotes in SQL, or that is one of Postgres's own."""
    is_own = name.startswith("pg_") or name == "information_schema"
    if is_own or not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise ValueError(SCHEMA_NAME_RULE)
