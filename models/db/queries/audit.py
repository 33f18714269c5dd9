"""The audit log: entries are added, never changed, and deleted only by age.

Triggers of the table refuse everything else (docs/operations.md). An
entry about a change of rows is written by the statement that changes them (`recorded`), or in its
transaction (`RECORD`).
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Self
from uuid import UUID

import orjson

from models.db.statement import Query, Statement
from models.ids import new_uuid


class ActorKind(StrEnum):
    """Who acted."""

    KEY = "key"
    """a client with a valid API key"""
    OPERATOR = "operator"
    """somebody who ran a command"""
    SERVER = "server"
    """this server itself"""
    UNKNOWN = "unknown"
    """a client without a valid API key"""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acted, and from where."""

    kind: ActorKind
    key_id: UUID | None = None
    key_prefix: str | None = None
    os_user: str | None = None
    project: str | None = None
    """the name of the key's project"""
    address: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action. Nothing in it is a secret, an input or an output."""

    actor: Actor
    action: str
    """subject and verb, one of ACTIONS: `response.delete`"""
    object_id: str | None = None
    """the public id or the name of what it was done to"""
    outcome: str = "done"
    """`done`; `requested` if another process does it; `refused`"""
    project: str | None = None
    """the name of the object's project, if it is not the actor's"""
    details: dict[str, Any] = field(default_factory=dict)
    id: UUID = field(default_factory=new_uuid)

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"models/db/queries/audit.py does not list {self.action}")

    def of_project(self, project: str) -> Self:
        """The same entry about an object of this project."""
        return replace(self, project=project)

    def values(self) -> dict[str, object]:
        """The parameters of `recorded` and `RECORD`. A statement that is sent again with the same
        values adds no second entry."""
        actor = self.actor
        return {
            "audit_id": self.id,
            "audit_actor": actor.kind.value,
            "audit_key_id": actor.key_id,
            "audit_key_prefix": actor.key_prefix,
            "audit_os_user": actor.os_user,
            "audit_project": self.project or actor.project,
            "audit_address": actor.address,
            "audit_action": self.action,
            "audit_object": self.object_id,
            "audit_outcome": self.outcome,
            "audit_request_id": actor.request_id,
            "audit_details": orjson.dumps(self.details).decode(),
        }


_COLUMNS = "id, actor, key_id, key_prefix, os_user, project, address, action, object, outcome, request_id, details"
_VALUES = """CAST(:audit_id AS uuid), CAST(:audit_actor AS text), CAST(:audit_key_id AS uuid),
    CAST(:audit_key_prefix AS text),
    CAST(:audit_os_user AS text), CAST(:audit_project AS text), CAST(:audit_address AS text),
    CAST(:audit_action AS text),
    CAST(:audit_object AS text), CAST(:audit_outcome AS text), CAST(:audit_request_id AS text),
    CAST(:audit_details AS jsonb)"""


def recorded(source: str) -> str:
    """An INSERT for a WITH clause: adds the entry if `source`, another part of the clause, has a
    row. Its parameters are `AuditEntry.values()`."""
    return f"INSERT INTO audit ({_COLUMNS}) SELECT {_VALUES} FROM {source} LIMIT 1 ON CONFLICT (id) DO NOTHING"


RECORD = Statement(f"INSERT INTO audit ({_COLUMNS}) VALUES ({_VALUES}) ON CONFLICT (id) DO NOTHING")
"""Adds an entry: for actions whose statement cannot add it, in their transaction."""
RECORD_ABOUT_RESPONSE = Statement(
    f"""
    INSERT INTO audit ({_COLUMNS}) SELECT {_VALUES.replace("CAST(:audit_project AS text)", "p.name")}
    FROM responses r JOIN projects p ON p.id = r.project_id WHERE r.id = :response ON CONFLICT (id) DO NOTHING
    """
)
"""Adds an entry about a response, with the name of its project."""

RECORD_REFUSED = Statement("""
    INSERT INTO audit (id, at, actor, key_id, key_prefix, project, address, action, object, outcome, details)
    SELECT f.id, f.at, f.actor, f.key_id, f.key_prefix, f.project, f.address, f.action, f.object, 'refused',
           jsonb_build_object('count', f.count)
    FROM jsonb_to_recordset(CAST(:counts AS jsonb))
         AS f (id uuid, at timestamptz, actor text, key_id uuid, key_prefix text, project text, address text,
               action text, object text, count bigint)
    ON CONFLICT (id) DO NOTHING
""")
"""Adds entries about refused requests, each of which counts equal ones of one minute."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An entry as it is shown."""

    id: UUID
    at: datetime
    actor: str
    key_id: UUID | None
    key_prefix: str | None
    os_user: str | None
    project: str | None
    address: str | None
    action: str
    object: str | None
    outcome: str
    request_id: str | None
    details: dict[str, Any]


_SHOWN = """a.id, a.at, a.actor, a.key_id, a.key_prefix, a.os_user, a.project, a.address, a.action, a.object, a.outcome,
    a.request_id, a.details"""
_FILTER = """(CAST(:since AS interval) IS NULL OR a.at >= now() - CAST(:since AS interval))
          AND (CAST(:project AS text) IS NULL OR a.project = CAST(:project AS text))
          AND (CAST(:action AS text) IS NULL OR a.action = CAST(:action AS text)
               OR starts_with(a.action, CAST(:action AS text) || '.'))"""

LIST = Query(
    f"""
    SELECT {_SHOWN} FROM audit a
    WHERE (a.at, a.id) < (CAST(:at AS timestamptz), CAST(:id AS uuid)) AND {_FILTER}
    ORDER BY a.at DESC, a.id DESC LIMIT :max_rows
    """,
    AuditRow,
)
"""Selects the newest entries before the position (`at`, `id`) that fit the filter; null: any. An
action without its verb stands for all actions of the subject."""
EXPORT = Query(
    f"""
    SELECT {_SHOWN} FROM audit a
    WHERE (a.at, a.id) > (CAST(:at AS timestamptz), CAST(:id AS uuid)) AND {_FILTER} ORDER BY a.at, a.id LIMIT :max_rows
    """,
    AuditRow,
)
"""Selects the oldest entries behind the position (`at`, `id`) that fit the filter, as LIST does."""
_LOOKED_AT = """SELECT * FROM audit a
    WHERE (a.at, a.id) < (CAST(:at AS timestamptz), CAST(:id AS uuid))
      AND a.at >= coalesce(CAST(:begin AS timestamptz), '-infinity') ORDER BY a.at DESC, a.id DESC"""
LOOK = Query(
    f"""
    SELECT {_SHOWN} FROM ({_LOOKED_AT} LIMIT :look_at) a
    WHERE (CAST(:who AS text) IS NULL OR a.actor = :who OR starts_with(a.os_user, CAST(:who AS text))
           OR starts_with(a.key_prefix, CAST(:who AS text)) OR a.address = :who)
      AND (CAST(:project AS text) IS NULL OR a.project = CAST(:project AS text))
      AND (CAST(:action AS text) IS NULL OR a.action = CAST(:action AS text)
           OR starts_with(a.action, CAST(:action AS text) || '.'))
    ORDER BY a.at DESC, a.id DESC LIMIT :max_rows
    """,
    AuditRow,
)
"""Selects those of the newest `look_at` entries before the position (`at`, `id`), and not before
`begin`, that fit the filter; null: any. `who`: a kind of actor, an address, or the beginning of a
user or key."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where an entry is in the log."""

    at: datetime
    id: UUID


LOOK_END = Query(
    f"SELECT l.at, l.id FROM ({_LOOKED_AT}) l OFFSET CAST(:look_at AS int) - 1 LIMIT 1", Position
)
"""Selects the last entry that LOOK reads. No row: there are fewer than `look_at`."""
FIND = Query(f"SELECT {_SHOWN} FROM audit a WHERE a.id = :id", AuditRow)
"""Selects an entry by its id."""


ACTIONS = frozenset(
    (
        *("admin.refuse", "authentication.fail"),
        *("batch.cancel", "batch.retry", "batch.reveal"),
        *("console.link", "console.login", "console.logout", "console.reveal"),
        *("container.delete", "container.stop"),
        *("conversation.delete", "conversation.item.delete"),
        *("file.delete", "upload.cancel"),
        *("key.create", "key.revoke", "key.rotate", "key.update"),
        *("project.create", "project.delete", "project.export", "project.import", "project.set"),
        *("response.cancel", "response.delete", "response.fail"),
        *("response.requeue", "response.retry", "response.reveal", "response.search"),
        *("schedule.create", "schedule.delete", "schedule.pause", "schedule.resume"),
        *("schedule.run", "schedule.set"),
        "secrets.rotate",
        *("service_account.create", "service_account.delete"),
        "upstream.check",
        *("vector_store.batch.cancel", "vector_store.delete", "vector_store.file.delete"),
        *("webhook.create", "webhook.delete", "webhook.disable", "webhook.enable"),
        *("webhook.resend", "webhook.rotate", "webhook.set", "webhook.test"),
        "worker.drain",
    )
)
"""Subject and verb of each. An entry with another one cannot be made."""
