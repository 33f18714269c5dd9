"""Links that log an operator into the console once, and the tokens of its sessions."""

import hashlib
import secrets
from datetime import timedelta

import psycopg

from models.config.addresses import DEFAULT_SCHEMA
from models.db.queries.audit import RECORD, AuditEntry
from models.db.queries.console import INSERT_LINK
from models.db.sync import execute_sync, set_search_path

LINK_LIFETIME = timedelta(minutes=10)
LOGIN_PATH = "/console/login?link="
"""What follows the address of the server in a link; the token comes behind it."""


def new_token() -> str:
    """43 URL-safe characters: 256 random bits."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> bytes:
    """The SHA-256 of a token, which is stored and compared. It has 256 random bits, so a hash
    without salt is enough."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def create_link(dsn: str, schema: str = DEFAULT_SCHEMA, entry: AuditEntry | None = None) -> str:
    """Stores a link, which is valid once within LINK_LIFETIME, and returns its token. `schema`: the
    setting `database_schema`. `entry`: what the audit log says of it."""
    token = new_token()
    values = {"hash": hash_token(token), "lifetime": LINK_LIFETIME}
    with psycopg.connect(dsn, target_session_attrs="primary") as connection:
        connection.execute(set_search_path(schema))
        execute_sync(connection, INSERT_LINK, values)
        if entry is not None:
            execute_sync(connection, RECORD, entry.values())
    return token
