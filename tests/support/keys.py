"""API keys of projects, made without the audit log."""

from models.config.addresses import DEFAULT_SCHEMA
from models.keys import DEFAULT_GRANT, KeyGrant, bootstrap, hash_key, new_key

__all__ = ["create", "hash_key"]


def create(
    dsn: str, project: str, schema: str = DEFAULT_SCHEMA, grant: KeyGrant = DEFAULT_GRANT
) -> str:
    """A new key of the project of that name, which is made if there is none. Blocks."""
    key = new_key()
    bootstrap(dsn, key, schema, project, grant)
    return key
