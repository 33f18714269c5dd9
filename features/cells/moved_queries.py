"""Projects that have moved to another cell: their keys, and what of them is still here."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.db.queries.common import IS_VALID
from models.db.statement import Query, column


@dataclass(frozen=True, slots=True)
class MovedKey:
    """A valid key of a project that has moved."""

    hash: bytes
    project_id: UUID
    project: str
    url: str
    """of the other cell"""
    moved_at: int


MOVED_KEYS = Query(
    f"""
    SELECT k.hash, p.id AS project_id, p.name AS project, p.policy->>'moved_to' AS url,
           coalesce(CAST(p.policy->>'moved_at' AS bigint), 0) AS moved_at
    FROM api_keys k JOIN projects p ON p.id = k.project_id
    WHERE p.policy->>'moved_to' IS NOT NULL AND {IS_VALID} AND NOT 'admin' = ANY(k.scopes)
    """,
    MovedKey,
)
"""Selects the valid keys of projects that have moved."""
_TABLES = (
    *("responses", "conversations", "files", "vector_stores", "batches", "containers"),
    *("schedules", "webhook_endpoints"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the things are that a request names."""

    here: bool
    """one of them is this cell's, or the request repeats a create of here"""
    elsewhere: bool
    """this cell knows nothing of one of them"""


FIND_PLACE = Query(
    f"""
    SELECT coalesce(bool_or(named.known AND NOT named.has_left), false) OR EXISTS (
               SELECT 1 FROM idempotency_keys i WHERE i.project_id = :project AND i.expires_at > clock_timestamp()
                 AND (i.key = CAST(:key AS text)
                      OR (i.key LIKE 'sdk:%' AND i.body_hash = CAST(:body_hash AS bytea)))
                 AND NOT EXISTS (SELECT 1 FROM moved_things m WHERE m.id = i.response_id AND NOT m.is_copy)) AS here,
           coalesce(bool_or(NOT named.known), false) AS elsewhere
    FROM (SELECT {
        " OR ".join(
            f"EXISTS (SELECT 1 FROM {table} t WHERE t.project_id = :project AND t.id = given.id)"
            for table in _TABLES
        )
    } AS known,
                 EXISTS (SELECT 1 FROM moved_things m WHERE m.id = given.id AND NOT m.is_copy) AS has_left
          FROM unnest(CAST(:ids AS uuid[])) AS given (id)) named
    """,
    Place,
)
"""Of these ids, of a create with this key, or one of an SDK with this body. Null: the request has
none."""


@dataclass(frozen=True, slots=True)
class ProjectExport:
    """What another cell needs to serve a project."""

    name: str
    weight: int
    policy: dict[str, Any]
    service_accounts: list[dict[str, Any]]
    keys: list[dict[str, Any]]
    """their hashes, no value"""


EXPORT_PROJECT = Query(
    """
    SELECT p.name, p.weight, p.policy - '{moved_to,moved_at}'::text[] AS policy,
           coalesce((SELECT jsonb_agg(to_jsonb(s) ORDER BY s.id) FROM service_accounts s WHERE s.project_id = p.id),
                    '[]') AS service_accounts,
           coalesce((SELECT jsonb_agg(to_jsonb(k) - 'created_by' || jsonb_build_object('hash', encode(k.hash, 'hex'))
                                      ORDER BY k.id)
                     FROM api_keys k WHERE k.project_id = p.id AND k.revoked_at IS NULL AND NOT 'admin' = ANY(k.scopes)
                       AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())), '[]') AS keys
    FROM projects p WHERE p.id = :id AND p.archived_at IS NULL
    """,
    ProjectExport,
)
"""Selects a project with its service accounts and valid keys, without those of admins."""
IMPORT_PROJECT = column(
    """
    INSERT INTO projects (id, name, weight, policy) VALUES (:id, :name, :weight, :policy)
    ON CONFLICT DO NOTHING RETURNING id
    """,
    UUID,
)
"""Inserts a project with its id. No row: there is one with this id or name."""
RETURN_PROJECT = column(
    """
    UPDATE projects SET weight = :weight, policy = CAST(:policy AS jsonb) || jsonb_build_object(
        'moved_to', policy->'moved_to', 'moved_at', coalesce(policy->'moved_at', '0'))
    WHERE id = :id AND policy->>'moved_to' IS NOT NULL RETURNING CAST(policy->>'moved_at' AS bigint)
    """,
    int,
)
"""Gives a project that has left this cell the policy that it has now. Selects when it has left. No
row: it has not."""
IMPORT_KEYS = column(
    """
    WITH accounts AS (
        INSERT INTO service_accounts (id, project_id, name, created_at)
        SELECT f.id, :id, f.name, f.created_at
        FROM jsonb_to_recordset(:service_accounts) AS f (id uuid, name text, created_at timestamptz)
        ON CONFLICT DO NOTHING)
    INSERT INTO api_keys (id, project_id, prefix, hash, scopes, name, allowed_models, created_at, expires_at,
                          service_account_id)
    SELECT f.id, :id, f.prefix, decode(f.hash, 'hex'), f.scopes, f.name, f.allowed_models, f.created_at, f.expires_at,
           f.service_account_id
    FROM jsonb_to_recordset(:keys) AS f (id uuid, prefix text, hash text, scopes text[], name text,
                                         allowed_models text[], created_at timestamptz, expires_at timestamptz,
                                         service_account_id uuid)
    WHERE NOT 'admin' = ANY(f.scopes)
    ON CONFLICT DO NOTHING RETURNING id
    """,
    UUID,
)
"""Inserts the service accounts and keys that are not there yet. They are valid as they were."""
