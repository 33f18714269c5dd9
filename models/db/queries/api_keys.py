"""Projects and their API keys."""

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from models.db.queries.common import IS_VALID
from models.db.statement import Query, Statement, column
from models.projects.policy import DEFAULT_POLICY, ProjectPolicy
from models.projects.scopes import DEFAULT_SCOPES, Scope, parse_scopes


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A valid key, and what its project may do."""

    id: UUID
    project_id: UUID
    project: str
    """the name of its project"""
    prefix: str
    """the first characters of the key"""
    hash: bytes
    """the SHA-256 of the whole key"""
    scopes: frozenset[Scope] = DEFAULT_SCOPES
    allowed_models: tuple[str, ...] | None = None
    """names and patterns; None: all that its project may use"""
    expires_at: datetime | None = None
    expires_monotonic: float | None = field(default=None, compare=False)
    """`expires_at` by the monotonic clock of this process"""
    policy: ProjectPolicy = DEFAULT_POLICY
    """of its project"""

    @classmethod
    def from_row(
        cls,
        id: UUID,  # noqa: A002  (the name of the column)
        project_id: UUID,
        project: str,
        prefix: str,
        hash: bytes,  # noqa: A002
        scopes: list[str],
        allowed_models: list[str] | None,
        expires_at: datetime | None,
        seconds_left: float | None,
        policy: dict[str, Any],
    ) -> Self:
        """The key of a row."""
        return cls(
            id,
            project_id,
            project,
            prefix,
            hash,
            parse_scopes(scopes),
            None if allowed_models is None else tuple(allowed_models),
            expires_at,
            None if seconds_left is None else time.monotonic() + seconds_left,
            ProjectPolicy.from_json(policy) if policy else DEFAULT_POLICY,
        )


_SELECT_API_KEY = """
    SELECT k.id, k.project_id, p.name AS project, k.prefix, k.hash, k.scopes, k.allowed_models, k.expires_at,
           extract(epoch FROM k.expires_at - clock_timestamp())::float AS seconds_left, p.policy
    FROM api_keys k JOIN projects p ON p.id = k.project_id"""
FIND_API_KEYS = Query(
    f"{_SELECT_API_KEY} WHERE k.hash = ANY(CAST(:hashes AS bytea[])) AND {IS_VALID}",
    ApiKey.from_row,
)
"""Selects keys by their hashes. No row: there is no such key, or it was revoked or has expired, or
its project was archived."""
FIND_API_KEY_BY_ID = Query(f"{_SELECT_API_KEY} WHERE k.id = :id AND {IS_VALID}", ApiKey.from_row)
"""Selects a key by its id; else as FIND_API_KEYS."""
VALID_KEYS = column(
    f"""
    SELECT k.id FROM api_keys k JOIN projects p ON p.id = k.project_id
    WHERE k.id = ANY(CAST(:ids AS uuid[])) AND {IS_VALID}
    """,
    UUID,
)
"""Selects those of the keys `ids` that are valid."""
TOUCH_API_KEY = Statement("""
    UPDATE api_keys SET last_used_at = clock_timestamp()
    WHERE id = :id AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')
""")
"""Notes that a key is used. Several processes together write once a minute."""


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """A project, with its policy."""

    id: UUID
    name: str
    policy: ProjectPolicy

    @classmethod
    def from_row(cls, id: UUID, name: str, policy: dict[str, Any]) -> Self:  # noqa: A002
        """The project of a row."""
        return cls(id, name, ProjectPolicy.from_json(policy) if policy else DEFAULT_POLICY)


FIND_PROJECT = Query("SELECT id, name, policy FROM projects WHERE id = :id", ProjectRow.from_row)
"""Selects a project, also an archived one."""
