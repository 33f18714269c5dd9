"""A link that logs an operator into the console once."""

from pathlib import Path

from cli.embedded.data_folder import default_folder, running_up
from cli.operations.audit_entries import operator
from cli.options import resolve_database
from models.console_links import LOGIN_PATH, create_link
from models.db.queries.audit import AuditEntry


def new_link(data: Path | None) -> str:
    """The address of the console of the `up` that runs, with a new link; of another server only
    what follows its address. Raises what a connection raises."""
    database = resolve_database(data)
    entry = AuditEntry(operator(), "console.link")
    token = create_link(database.dsn, database.database_schema, entry)
    running = running_up(data or default_folder())
    base_url = "" if running is None else (running.base_url or "").removesuffix("/v1")
    return f"{base_url}{LOGIN_PATH}{token}"
