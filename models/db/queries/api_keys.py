"""Projects and their API keys."""

from dataclasses import dataclass
from uuid import UUID

from models.db.statement import Query, Statement


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A valid key."""

    id: UUID
    project_id: UUID
    project: str
    """the name of its project"""
    prefix: str
    """the first characters of the key"""
    hash: bytes
    """the SHA-256 of the whole key"""


FIND_API_KEY = Query(
    """
    SELECT k.id, k.project_id, p.name AS project, k.prefix, k.hash FROM api_keys k JOIN projects p ON p.id = k.project_id
    WHERE k.hash = :hash AND k.revoked_at IS NULL
    """,
    ApiKey,
)
"""Selects a key by its hash. No row: there is no such key, or it was revoked."""
TOUCH_API_KEY = Statement("UPDATE api_keys SET last_used_at = clock_timestamp() WHERE id = :id")
INSERT_PROJECT = Statement(
    "INSERT INTO projects (id, name) VALUES (:id, :name) ON CONFLICT (name) DO NOTHING"
)
"""Inserts a project unless one has the name."""
INSERT_API_KEY = Statement("""
    INSERT INTO api_keys (id, project_id, prefix, hash) SELECT :id, id, :prefix, :hash FROM projects WHERE name = :project ON CONFLICT (hash) DO NOTHING
""")
"""Inserts a key of the project with that name. It does nothing for a key that exists."""
