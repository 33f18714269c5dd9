"""What a cell shows of its keys."""

from dataclasses import dataclass
from datetime import datetime

from models.db.statement import Query


@dataclass(frozen=True, slots=True)
class KeyOfCell:
    """A valid key, without anything that could be used as one."""

    prefix: str
    project: str
    name: str | None
    scopes: list[str]
    last_used_at: datetime | None


VALID_KEYS_OF_CELL = Query(
    """
    SELECT k.prefix, p.name AS project, k.name, k.scopes, k.last_used_at
    FROM api_keys k JOIN projects p ON p.id = k.project_id
    WHERE k.revoked_at IS NULL AND p.archived_at IS NULL
      AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp()) ORDER BY k.id DESC LIMIT :max_rows
    """,
    KeyOfCell,
)
"""Selects the valid keys, the newest first."""
