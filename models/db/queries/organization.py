"""Projects, service accounts and keys, as operators and admins list and change them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from models.db.queries.common import CANCELLABLE_BATCH, CANCELLING_BATCH, OPEN, pages_of
from models.db.statement import Query, column


@dataclass(frozen=True, slots=True)
class ProjectDetails:
    """A project, with its policy as it is stored."""

    id: UUID
    name: str
    created_at: datetime
    archived_at: datetime | None
    policy: dict[str, Any]
    weight: int


_PROJECT = "p.id, p.name, p.created_at, p.archived_at, p.policy, p.weight"

LIST_PROJECTS = Query(
    f"""
    SELECT {_PROJECT} FROM projects p
    WHERE (CAST(:include_archived AS bool) OR p.archived_at IS NULL) AND (CAST(:after AS uuid) IS NULL OR p.id > :after)
    ORDER BY p.id LIMIT :max_rows
    """,
    ProjectDetails,
)
"""Selects projects, the oldest first, behind the one with the id `after`; null: from the start."""
PROJECTS_BY_NAME = Query(
    f"""
    SELECT {_PROJECT} FROM (
        SELECT * FROM projects p
        WHERE (lower(p.name), p.id)
              > (lower(coalesce((SELECT q.name FROM projects q WHERE q.id = CAST(:after AS uuid)), '')),
                 coalesce(CAST(:after AS uuid), '00000000-0000-0000-0000-000000000000'))
        ORDER BY lower(p.name), p.id LIMIT :look_at) p
    WHERE (CAST(:include_archived AS bool) OR p.archived_at IS NULL)
      AND (CAST(:name AS text) IS NULL OR position(lower(CAST(:name AS text)) IN lower(p.name)) > 0)
    ORDER BY lower(p.name), p.id LIMIT :max_rows
    """,
    ProjectDetails,
)
"""Selects projects by name, behind the one with the id `after`; null: from the start. `name`: what
their names contain, in any case; null: any. At most `look_at` are looked at."""


@dataclass(frozen=True, slots=True)
class LastUse:
    """When a request last had one of a project's keys."""

    project_id: UUID
    at: datetime | None


LAST_USES = Query(
    """
    SELECT p.id AS project_id, (SELECT max(k.last_used_at) FROM (SELECT k.last_used_at FROM api_keys k
                                                                 WHERE k.project_id = p.id LIMIT 1000) k) AS at
    FROM unnest(CAST(:projects AS uuid[])) AS p (id)
    """,
    LastUse,
)
"""Reads up to a thousand keys of each of these projects."""
FIND_PROJECTS = Query(
    f"""
    SELECT {_PROJECT} FROM projects p
    WHERE p.name = :name OR replace(p.id::text, '-', '') LIKE CAST(:digits AS text) || '%'
    ORDER BY p.name <> :name, p.id LIMIT 10
    """,
    ProjectDetails,
)
"""Selects the projects that a name may mean: theirs first, then the first hex digits of their
ids."""
LOCK_PROJECT = Query(
    f"SELECT {_PROJECT} FROM projects p WHERE p.id = :id FOR UPDATE", ProjectDetails
)
"""Selects a project, and keeps others from changing it until the transaction ends."""
CREATE_PROJECT = Query(
    f"""
    INSERT INTO projects AS p (id, name, policy, weight) VALUES (:id, :name, :policy, :weight)
    ON CONFLICT (name) DO NOTHING RETURNING {_PROJECT}
    """,
    ProjectDetails,
)
"""Inserts a project. No row: one has the name."""
UPDATE_PROJECT = Query(
    f"UPDATE projects p SET name = :name, policy = :policy, weight = :weight WHERE id = :id RETURNING {_PROJECT}",
    ProjectDetails,
)
ARCHIVE_PROJECT = Query(
    f"UPDATE projects p SET archived_at = coalesce(archived_at, clock_timestamp()) WHERE id = :id RETURNING {_PROJECT}",
    ProjectDetails,
)
"""Makes all keys of a project invalid, for ever."""
CANCEL_OF_PROJECT = column(
    f"""
    WITH open AS MATERIALIZED (SELECT r.id FROM responses r
                               WHERE r.project_id = :id AND r.status IN {OPEN} AND r.cancel_requested_at IS NULL
                               LIMIT :rows FOR NO KEY UPDATE SKIP LOCKED),
         batch AS (UPDATE batches b SET {CANCELLING_BATCH} WHERE b.project_id = :id AND {CANCELLABLE_BATCH})
    UPDATE responses r SET cancel_requested_at = clock_timestamp() FROM open WHERE r.id = open.id RETURNING r.id
    """,
    UUID,
)
"""Records that up to `rows` open responses, and all batches, of a project are to be cancelled. Owners of
responses, the sweep, and the workers that collect batches act on it within seconds. No row: no more
is to be cancelled, or other transactions have locked the rest."""
ARCHIVED_WITH_OPEN = column(
    "SELECT p.id FROM projects p WHERE p.archived_at IS NOT NULL AND NOT p.cancelled", UUID
)
"""Archived projects of which something may be open."""
ARCHIVED_IS_DUE = column(
    "SELECT EXISTS (SELECT 1 FROM projects p WHERE p.archived_at IS NOT NULL AND NOT p.cancelled) AS due",
    bool,
)
"""Whether there is one."""
MARK_CANCELLED = column(
    f"""
    UPDATE projects p SET cancelled = true WHERE p.id = :id AND p.archived_at < clock_timestamp() - interval '1 minute'
      AND NOT EXISTS (SELECT 1 FROM responses r
                      WHERE r.project_id = p.id AND r.status IN {OPEN} AND r.cancel_requested_at IS NULL) RETURNING p.id
    """,
    UUID,
)
"""Marks an archived project of which nothing is open that is not to be cancelled. All web processes
have noticed a minute later at the latest that its keys are invalid, or were declared dead."""


@dataclass(frozen=True, slots=True)
class KeyDetails:
    """An API key, without anything that could be used as one."""

    id: UUID
    prefix: str
    """its first characters"""
    project_id: UUID
    project: str
    name: str | None
    scopes: list[str]
    allowed_models: list[str] | None
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    archived_at: datetime | None
    """of its project"""
    service_account_id: UUID | None
    service_account: str | None
    service_account_created_at: datetime | None
    now: datetime

    @property
    def is_valid(self) -> bool:
        """Whether requests with it are accepted."""
        is_expired = self.expires_at is not None and self.expires_at <= self.now
        return self.revoked_at is None and self.archived_at is None and not is_expired

    @property
    def state(self) -> str:
        """`valid`, `revoked`, `expired`, or `archived`: its project is."""
        if self.revoked_at is not None:
            return "revoked"
        if self.archived_at is not None:
            return "archived"
        return "valid" if self.is_valid else "expired"


_KEYS = """
    SELECT k.id, k.prefix, k.project_id, p.name AS project, k.name, k.scopes, k.allowed_models, k.created_at,
           k.last_used_at, k.expires_at, k.revoked_at,
           p.archived_at, k.service_account_id, s.name AS service_account, s.created_at AS service_account_created_at,
           clock_timestamp() AS now
    FROM api_keys k JOIN projects p ON p.id = k.project_id
    LEFT JOIN service_accounts s ON s.id = k.service_account_id"""
_IS_PRESENT = "k.revoked_at IS NULL AND p.archived_at IS NULL"

LIST_KEYS = Query(
    f"""
    {_KEYS} WHERE CAST(:project AS text) IS NULL OR p.name = :project
    ORDER BY k.revoked_at IS NOT NULL, k.created_at, k.id
    """,
    KeyDetails,
)
"""Selects all keys, of one project if it is given; those that are not revoked first."""
KEYS_PAGE = Query(
    f"{_KEYS} WHERE k.project_id = :project AND k.id < CAST(:before AS uuid) ORDER BY k.id DESC LIMIT :max_rows",
    KeyDetails,
)
"""Selects keys of a project, also revoked ones, the newest first, behind the one with the id
`before`."""
KEY_OF_ANY_PROJECT = Query(f"{_KEYS} WHERE k.id = :id", KeyDetails)
"""Any key, also a revoked one. No row: there is none."""
PROJECTS_BY_ID = Query(
    f"SELECT {_PROJECT} FROM projects p WHERE p.id = ANY(CAST(:ids AS uuid[]))", ProjectDetails
)
"""Selects these projects, also archived ones, in any order."""
PROJECT_BY_ID = Query(f"SELECT {_PROJECT} FROM projects p WHERE p.id = :id", ProjectDetails)
"""Any project, also an archived one. No row: there is none."""
KEYS_BY_ID = Query(f"{_KEYS} WHERE k.id = ANY(CAST(:ids AS uuid[]))", KeyDetails)
"""Selects these keys, also revoked ones, in any order."""
FIND_KEYS = Query(
    f"""
    {_KEYS} WHERE k.prefix = :name OR k.hash = :hash OR replace(k.id::text, '-', '') LIKE CAST(:digits AS text) || '%'
    ORDER BY k.created_at
    """,
    KeyDetails,
)
"""Selects the keys that a name may mean: their first characters, the key itself by its hash, or the
first hex digits of their id."""
PROJECT_KEYS = Query(
    f"""{_KEYS} WHERE k.project_id = :project AND {_IS_PRESENT} AND NOT 'admin' = ANY(k.scopes)
        AND (CAST(:after AS uuid) IS NULL OR k.id > :after) ORDER BY k.id LIMIT :max_rows""",
    KeyDetails,
)
"""Selects the keys of a project that are not revoked, without those of admins."""
ADMIN_KEYS = pages_of(
    f"{_KEYS} WHERE {_IS_PRESENT} AND 'admin' = ANY(k.scopes)", "k.id", KeyDetails, limit="max_rows"
)
"""Selects the keys of admins that are not revoked."""
KEY_BY_ID = Query(
    f"""
    {_KEYS} WHERE k.id = :id AND {_IS_PRESENT} AND (CAST(:project AS uuid) IS NULL OR k.project_id = :project)
      AND ('admin' = ANY(k.scopes)) = CAST(:is_admin AS bool)
    """,
    KeyDetails,
)
"""Selects a key that is not revoked: an admin's if `is_admin`, else one of `project`."""
REVOKE_KEY = column(
    "UPDATE api_keys SET revoked_at = clock_timestamp() WHERE id = :id AND revoked_at IS NULL RETURNING id",
    UUID,
)
"""Makes a key invalid, for ever. No row: it was before."""
CREATE_KEY = column(
    """
    INSERT INTO api_keys (id, project_id, prefix, hash, scopes, name, allowed_models, expires_at, created_by,
                          service_account_id)
    SELECT :id, p.id, :prefix, :hash, CAST(:scopes AS text[]), :name, CAST(:allowed_models AS text[]),
           clock_timestamp() + CAST(:lifetime AS interval),
           CAST(:created_by AS uuid), CAST(:service_account AS uuid)
    FROM projects p WHERE p.id = :project AND p.archived_at IS NULL ON CONFLICT (hash) DO NOTHING RETURNING id
    """,
    UUID,
)
"""Inserts a key of a project. `lifetime`: null for one that does not expire. No row: the key exists
already, there is no such project, or it was archived."""
OWN_CELL = column("SELECT name FROM cell", str)
"""Selects the name of this cell. No row: it has none."""
SET_CELL = column(
    """
    WITH left_out AS (DELETE FROM cell WHERE CAST(:name AS text) = '')
    INSERT INTO cell (name) SELECT CAST(:name AS text) WHERE CAST(:name AS text) <> ''
    ON CONFLICT (single) DO UPDATE SET name = excluded.name WHERE cell.name <> excluded.name RETURNING name
    """,
    str,
)
"""Stores the name of this cell; an empty one: it has none."""
UPDATE_KEY = column(
    """
    UPDATE api_keys k SET scopes = coalesce(CAST(:scopes AS text[]), k.scopes),
           allowed_models = coalesce(CAST(:allowed_models AS text[]), k.allowed_models),
           expires_at = coalesce(clock_timestamp() + CAST(:lifetime AS interval), k.expires_at)
    WHERE k.id = :id AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
    RETURNING k.id
    """,
    UUID,
)
"""Changes what a key may do, and until when; what is null stays. No row: it was revoked or has
expired."""
ROTATE_KEY = column(
    """
    WITH old AS MATERIALIZED (SELECT * FROM api_keys WHERE id = :id FOR UPDATE),
         limited AS (UPDATE api_keys k SET expires_at = least(k.expires_at,
                                                              clock_timestamp() + CAST(:overlap AS interval)) FROM old
                                                              WHERE k.id = old.id),
         handed_on AS (UPDATE schedules s SET api_key_id = :new_id FROM old
                       WHERE s.project_id = old.project_id AND s.api_key_id = old.id)
    INSERT INTO api_keys (id, project_id, prefix, hash, scopes, name, allowed_models, expires_at, service_account_id)
    SELECT :new_id, project_id, :prefix, :hash, scopes, name, allowed_models,
           clock_timestamp() + (expires_at - created_at), service_account_id
    FROM old RETURNING id
    """,
    UUID,
)
"""Inserts a key that may do what the key `id` may do, for as long as that one was made for. The old
one stays valid for `overlap`, and no longer than it would have been. Its schedules run with the new
one."""


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A service account of a project: a program with keys of its own."""

    id: UUID
    project_id: UUID
    name: str
    created_at: datetime


_ACCOUNT = "s.id, s.project_id, s.name, s.created_at"
CREATE_SERVICE_ACCOUNT = Query(
    f"""
    INSERT INTO service_accounts AS s (id, project_id, name) SELECT :id, p.id, :name FROM projects p
    WHERE p.id = :project AND p.archived_at IS NULL
    RETURNING {_ACCOUNT}
    """,
    ServiceAccount,
)
"""Inserts a service account. No row: there is no such project, or it was archived."""
LIST_SERVICE_ACCOUNTS = Query(
    f"""
    SELECT {_ACCOUNT} FROM service_accounts s
    WHERE s.project_id = :project AND (CAST(:after AS uuid) IS NULL OR s.id > :after) ORDER BY s.id LIMIT :max_rows
    """,
    ServiceAccount,
)
FIND_SERVICE_ACCOUNT = Query(
    f"SELECT {_ACCOUNT} FROM service_accounts s WHERE s.project_id = :project AND s.id = :id",
    ServiceAccount,
)
DELETE_SERVICE_ACCOUNT = column(
    """
    WITH deleted AS (DELETE FROM service_accounts s WHERE s.project_id = :project AND s.id = :id RETURNING s.id),
         revoked AS (UPDATE api_keys k SET revoked_at = coalesce(k.revoked_at, clock_timestamp()) FROM deleted
                     WHERE k.service_account_id = deleted.id)
    SELECT id FROM deleted
    """,
    UUID,
)
"""Deletes a service account and makes its keys invalid."""
