"""What travels with a project to another cell, by kind: the tables, and the statements of both cells.

A kind has *things*: a thing is a row of its table, with the rows of others that belong to it. The
source lists them with their *versions*, texts that differ when the content does; null: it must stay
now. The target makes the same text of the copy that it has. `moved_things` says, in the source, what
has left it, and in the target, what is still a copy, which another import may replace.

Names in the texts: `t` is the row of a thing, `r` a row that has arrived.
"""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.common import ENDED, OPEN
from models.db.statement import Query, column


@dataclass(frozen=True, slots=True)
class TravellingTable:
    """A table with rows of a kind."""

    name: str
    of: str
    """which rows `x` belong to the things `ids`"""
    is_own: str
    """whether a row `r` that has arrived belongs to the project, and to the things `ids`"""
    order: str = "1"
    on_conflict: str = "DO NOTHING"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of things. The statements are lists of SQL, run one after another."""

    version: str
    tables: tuple[TravellingTable, ...]
    seen: str = "true"
    """whether `t` is there for its clients, and belongs to this kind"""
    mark: str = "t.id"
    """the id that `moved_things` has: its own, or that of the thing that it belongs to"""
    needs: str = "NULL::uuid"
    """what must leave before `t`"""
    inner: str | None = None
    """the ids of rows with ids of their own that travel with the things `ids`"""
    replaced: tuple[str, ...] = ()
    """before newer rows are stored"""
    arrived: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    """in the source, when they leave it"""
    settled: tuple[str, ...] = ()
    """in the target, when they have left the source"""
    dropped: str = ""
    """deletes them: in the target what the source has no more, in the source what has left it"""


def _is_ours(table: str, id_of_row: str) -> str:
    """OFFSET 0: looked up in the index for each row."""
    return f"EXISTS (SELECT 1 FROM {table} p WHERE p.id = {id_of_row} AND p.project_id = :project OFFSET 0)"


_ROOT = "r.project_id = :project AND r.id = ANY(CAST(:ids AS uuid[]))"
_IDS = "ANY(CAST(:ids AS uuid[]))"
_HIDE = "SET delete_requested_at = clock_timestamp() WHERE id = ANY(CAST(:ids AS uuid[])) AND project_id = :project"
_IS_IDLE = (
    f"NOT EXISTS (SELECT 1 FROM responses o WHERE o.project_id = :project AND o.status IN {OPEN})"
)
_ENDED_RESPONSE = f"r.project_id = :project AND r.status IN {ENDED} AND r.worker IS NULL"
_OF_CONVERSATION = f"SELECT i.response_id FROM items i WHERE i.conversation_id = {_IDS} AND i.response_id IS NOT NULL"
_HAS_LEFT = "EXISTS (SELECT 1 FROM moved_things m WHERE m.id = {} AND NOT m.is_copy)"


def _root(table: str, on_conflict: str = "DO NOTHING") -> TravellingTable:
    return TravellingTable(table, f"x.id = {_IDS}", _ROOT, on_conflict=on_conflict)


def _with_responses(responses: str) -> tuple[TravellingTable, ...]:
    """The tables of what belongs to these responses, but their items."""
    return tuple(
        TravellingTable(
            name, f"x.response_id = ANY(ARRAY({responses}))", _is_ours("responses", "r.response_id")
        )
        for name in ("tool_calls", "event_log", "steers", "idempotency_keys")
    )


_ENTRY_VERSION = (
    """md5(concat_ws('|', e.status, e.attributes, e.error_code, e.chunks, e.batch_id))"""
)
_ENTRIES = f"""SELECT string_agg(concat(e.id, {_ENTRY_VERSION}), ',' ORDER BY e.id) FROM vector_store_files e
               WHERE e.store_id = t.id AND e.delete_requested_at IS NULL"""

KINDS = {
    "conversations": Kind(
        f"""CASE WHEN NOT EXISTS (SELECT 1 FROM responses o WHERE o.conversation_id = t.id AND o.status IN {OPEN} OFFSET 0)
            THEN concat_ws('|', t.revision, md5(t.metadata::text),
                           (SELECT count(*) FROM items i WHERE i.conversation_id = t.id)) END""",
        (
            _root("conversations"),
            TravellingTable("responses", f"x.id IN ({_OF_CONVERSATION})", _ENDED_RESPONSE),
            TravellingTable(
                "items",
                f"""x.id IN (SELECT i.id FROM items i WHERE i.conversation_id = {_IDS}
                             UNION SELECT i.id FROM items i WHERE i.response_id IN ({_OF_CONVERSATION}))""",
                f"""(r.response_id IS NULL OR {_is_ours("responses", "r.response_id")})
                    AND (r.conversation_id IS NULL OR r.conversation_id = {_IDS})""",
                order="x.id",
            ),
            *_with_responses(_OF_CONVERSATION),
        ),
        inner=_OF_CONVERSATION,
        replaced=(f"DELETE FROM conversations WHERE id = {_IDS} AND project_id = :project",),
        # what the trigger image_of_item_is_deleted has hidden
        arrived=(
            """UPDATE files SET delete_requested_at = NULL
               WHERE project_id = :project AND purpose = 'image' AND delete_requested_at >= transaction_timestamp()""",
        ),
        dropped=f"DELETE FROM conversations WHERE id = {_IDS} AND project_id = :project",
    ),
    "responses": Kind(
        f"CASE WHEN t.status IN {ENDED} THEN '1' END",
        (
            TravellingTable("responses", f"x.id = {_IDS}", f"{_ENDED_RESPONSE} AND r.id = {_IDS}"),
            TravellingTable(
                "items",
                f"x.response_id = {_IDS}",
                f"{_is_ours('responses', 'r.response_id')} AND r.conversation_id IS NULL",
                order="x.id",
            ),
            *_with_responses("SELECT unnest(CAST(:ids AS uuid[]))"),
        ),
        seen="""t.delete_requested_at IS NULL AND NOT EXISTS (
            SELECT 1 FROM items i WHERE i.response_id = t.id AND i.conversation_id IS NOT NULL OFFSET 0)""",
        needs=f"""(SELECT p.id FROM responses p WHERE p.id = t.previous_response_id AND p.delete_requested_at IS NULL
                   AND NOT {_HAS_LEFT.format("p.id")})""",
        # An open WebSocket may continue what is not to be stored; it expires by itself.
        dropped=f"UPDATE responses {_HIDE} AND store",
    ),
    "vector_stores": Kind(
        f"""CASE WHEN NOT EXISTS (SELECT 1 FROM vector_store_files e WHERE e.store_id = t.id
                                  AND e.status = 'in_progress' AND e.delete_requested_at IS NULL)
            THEN md5(concat_ws('|', t.name, t.description, t.metadata::text, t.expires_after_days, t.embedding_model,
                               t.dimensions, ({_ENTRIES}),
                               (SELECT count(*) FROM vector_store_file_batches b WHERE b.store_id = t.id))) END""",
        (
            _root(
                "vector_stores",
                """(id) DO UPDATE SET name = excluded.name, description = excluded.description,
                    metadata = excluded.metadata, expires_after_days = excluded.expires_after_days,
                    expires_at = excluded.expires_at, embedding_model = excluded.embedding_model,
                    requested_dimensions = excluded.requested_dimensions, dimensions = excluded.dimensions,
                    delete_requested_at = NULL""",
            ),
            TravellingTable(
                "vector_store_file_batches",
                f"x.store_id = {_IDS}",
                f"r.store_id = {_IDS} AND {_is_ours('vector_stores', 'r.store_id')}",
            ),
        ),
        seen="t.delete_requested_at IS NULL",
        arrived=(
            f"UPDATE vector_stores SET has_index = false WHERE id = {_IDS} AND project_id = :project",
        ),
        dropped=f"UPDATE vector_stores {_HIDE}",
    ),
    "vector_store_files": Kind(
        f"(SELECT CASE WHEN e.status <> 'in_progress' THEN {_ENTRY_VERSION} END FROM (SELECT t.*) e)",
        (
            TravellingTable(
                "vector_store_files",
                f"x.id = {_IDS}",
                f"{_ROOT} AND {_is_ours('vector_stores', 'r.store_id')}",
            ),
            TravellingTable(
                "vector_store_chunks",
                f"x.entry_id = {_IDS}",
                f"""r.project_id = :project AND EXISTS (
                    SELECT 1 FROM vector_store_files e WHERE e.id = r.entry_id AND e.store_id = r.store_id
                      AND e.id = {_IDS} AND e.project_id = :project OFFSET 0)""",
            ),
        ),
        seen="t.delete_requested_at IS NULL",
        mark="t.store_id",
        replaced=(
            f"DELETE FROM vector_store_chunks WHERE entry_id = {_IDS} AND project_id = :project",
            f"DELETE FROM vector_store_files WHERE id = {_IDS} AND project_id = :project",
        ),
        dropped=f"UPDATE vector_store_files {_HIDE}",
    ),
    "batches": Kind(
        "CASE WHEN t.ended_at IS NOT NULL THEN '1' END",
        (TravellingTable("batches", f"x.id = {_IDS}", f"{_ROOT} AND r.ended_at IS NOT NULL"),),
        dropped=f"DELETE FROM batches WHERE id = {_IDS} AND project_id = :project",
    ),
    "webhook_endpoints": Kind(
        f"""CASE WHEN {_IS_IDLE} AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.endpoint_id = t.id
                                                 AND d.next_attempt_at IS NOT NULL)
            THEN md5(concat_ws('|', t.name, t.url, t.types::text, t.secrets::text, extract(epoch FROM t.disabled_at),
                               extract(epoch FROM t.old_secret_until))) END""",
        (_root("webhook_endpoints"),),
        seen="t.deleted_at IS NULL",
        replaced=(f"DELETE FROM webhook_endpoints WHERE id = {_IDS} AND project_id = :project",),
        dropped=f"DELETE FROM webhook_endpoints WHERE id = {_IDS} AND project_id = :project",
    ),
    "schedules": Kind(
        """CASE WHEN t.requested_run IS NULL
            THEN md5(concat_ws('|', t.revision, extract(epoch FROM t.decided_until), extract(epoch FROM t.paused_at),
                               extract(epoch FROM t.completed_at),
                               (SELECT count(*) FROM schedule_runs s WHERE s.schedule_id = t.id))) END""",
        (
            _root("schedules"),
            TravellingTable(
                "schedule_runs",
                f"x.schedule_id = {_IDS}",
                f"r.schedule_id = {_IDS} AND {_is_ours('schedules', 'r.schedule_id')}",
            ),
        ),
        seen="t.deleted_at IS NULL",
        replaced=(f"DELETE FROM schedules WHERE id = {_IDS} AND project_id = :project",),
        # A slot is due in one cell only; a web process of the source that decides one changes nothing then.
        arrived=(
            f"UPDATE schedules SET due_at = NULL WHERE id = {_IDS} AND project_id = :project",
        ),
        left=(
            f"""UPDATE schedules SET due_at = NULL, revision = revision + 1
                WHERE id = {_IDS} AND project_id = :project""",
        ),
        settled=(
            f"""UPDATE schedules SET due_at = upcoming[1] WHERE id = {_IDS} AND project_id = :project
                AND due_at IS NULL AND paused_at IS NULL AND completed_at IS NULL AND deleted_at IS NULL""",
        ),
        dropped=f"DELETE FROM schedules WHERE id = {_IDS} AND project_id = :project",
    ),
    "containers": Kind(
        f"""CASE WHEN {_IS_IDLE} AND t.sandbox IS NULL AND t.opening_until IS NULL
            THEN md5(concat_ws('|', t.name, extract(epoch FROM t.last_active_at),
                               (SELECT string_agg(concat(f.path, f.file_id), '|' ORDER BY f.path)
                                FROM container_files f WHERE f.container_id = t.id))) END""",
        (
            _root("containers"),
            TravellingTable(
                "container_files",
                f"x.container_id = {_IDS}",
                f"r.container_id = {_IDS} AND {_is_ours('containers', 'r.container_id')}",
            ),
        ),
        seen="t.deleted_at IS NULL",
        replaced=(f"DELETE FROM containers WHERE id = {_IDS} AND project_id = :project",),
        arrived=(
            f"""UPDATE containers SET sandbox = NULL, session = NULL, opening_until = NULL
                WHERE id = {_IDS} AND project_id = :project""",
            f"UPDATE container_files SET session = NULL WHERE container_id = {_IDS}",
        ),
        dropped=f"DELETE FROM containers WHERE id = {_IDS} AND project_id = :project",
    ),
    # The last: what the others name is there when they leave.
    "files": Kind(
        "t.bytes::text",
        (),
        seen="""t.completed_at IS NOT NULL AND t.delete_requested_at IS NULL
            AND (t.expires_at IS NULL OR t.expires_at > statement_timestamp())""",
        dropped=f"UPDATE files {_HIDE}",
    ),
}
"""In the order in which they are copied."""
STAYS = {
    **dict.fromkeys(("projects", "service_accounts", "api_keys"), "imported with the project"),
    **dict.fromkeys(("usage_entries", "usage_days", "usage_hours"), "usage of each cell"),
    **dict.fromkeys(("moved_things", "project_moves"), "of the move itself"),
    "container_cells": "usage of each cell",
    **dict.fromkeys(("attempts", "webhook_deliveries"), "what was done in this cell"),
    **dict.fromkeys(("batch_lines", "job_secrets"), "of what has not ended"),
    "search_documents": "made again in the target",
}
"""Other tables with a project, and why their rows stay."""

# --- the source ---

WINDOW = 1000
"""Rows of a table that are looked at together, of whatever project."""
END_OF_WINDOW = {
    name: column(
        f"SELECT t.id FROM {name} t WHERE t.id > :after ORDER BY t.id OFFSET {WINDOW - 1} LIMIT 1",
        UUID,
    )
    for name, kind in KINDS.items()
}
"""Selects the last id of the window behind `after`. No row: there are fewer."""


@dataclass(frozen=True, slots=True)
class Thing:
    """What the source has of a kind."""

    id: UUID
    version: str | None
    """None: it must stay now, or has left"""
    has_left: bool
    needs: UUID | None


def _in_window(alias: str) -> str:
    return f"{alias}.id > :after AND {alias}.id <= coalesce(CAST(:until AS uuid), '{UUID(int=2**128 - 1)}')"


def _things(name: str, kind: Kind, condition: str) -> Query[Thing]:
    return Query(
        f"""
        SELECT t.id, CASE WHEN NOT left_.found THEN {kind.version} END AS version, left_.found AS has_left,
               {kind.needs} AS needs
        FROM {name} t CROSS JOIN LATERAL (SELECT {_HAS_LEFT.format(kind.mark)} AS found) left_
        WHERE t.project_id = :project AND {condition} AND {kind.seen} ORDER BY t.id
        """,
        Thing,
    )


LIST = {name: _things(name, kind, _in_window("t")) for name, kind in KINDS.items()}
"""Selects the things of a window."""
FIND = {name: _things(name, kind, f"t.id = {_IDS}") for name, kind in KINDS.items()}
LOCK = {
    name: column(
        f"SELECT t.id FROM {name} t WHERE t.id = {_IDS} AND t.project_id = :project ORDER BY t.id FOR UPDATE",
        UUID,
    )
    for name, kind in KINDS.items()
}
EXPORT = {
    f"{name}.{table.name}": column(
        f"""
        SELECT replace(row_to_json(x)::text, E'\\n', ' ') AS line FROM {table.name} x
        WHERE {table.of} ORDER BY {table.order}
        """,
        str,
    )
    for name, kind in KINDS.items()
    for table in kind.tables
}
"""Selects the rows of the things `ids`, as JSON without line breaks."""
EXPORT_FILE = column(
    "SELECT row_to_json(x)::text AS line FROM files x WHERE id = :id AND project_id = :project", str
)
BEGIN_LEAVING = column(
    """
    WITH noted AS (INSERT INTO project_moves AS p (project_id, run)
                   SELECT id, :run FROM projects WHERE id = :project AND policy->>'moved_to' IS NOT NULL
                   ON CONFLICT (project_id) DO UPDATE SET run = excluded.run,
                       began_at = CASE WHEN p.run = excluded.run THEN p.began_at ELSE clock_timestamp() END
                   RETURNING began_at)
    SELECT NOT EXISTS (
        SELECT 1 FROM workers w WHERE w.kind = 'web' AND NOT w.dead
          AND w.expires_at < noted.began_at + CAST(:lease AS interval)) AS all_know
    FROM noted
    """,
    bool,
)
"""Notes that the project leaves this cell. Whether each web process has renewed its lease since, so
that `lease` is left of it; then it knows that the project has moved. No row: it has not."""
UNSETTLED = [
    column(
        f"""
        SELECT t.id FROM moved_things m JOIN {name} t ON t.id = m.id
        WHERE t.project_id = :project AND m.is_copy = :is_copy AND {kind.seen}
          {"AND t.store" if name == "responses" else ""} LIMIT 1
        """,
        UUID,
    )
    for name, kind in KINDS.items()
    if kind.mark == "t.id"
]
"""Each selects a thing that an earlier move, which is not complete, has copied to this cell, or has
let go and not deleted."""
LEAVE = column(
    """
    INSERT INTO moved_things (id, project_id, is_copy)
    SELECT id, :project, false FROM unnest(CAST(:ids AS uuid[])) AS given (id)
    ON CONFLICT (id) DO UPDATE SET is_copy = false RETURNING id
    """,
    UUID,
)
FIND_LEFT = column(
    f"""
    SELECT m.id FROM moved_things m
    WHERE m.id = {_IDS} AND m.project_id = :project AND NOT m.is_copy
      AND NOT EXISTS (SELECT 1 FROM responses o WHERE o.project_id = :project AND o.status IN {OPEN})
    """,
    UUID,
)
"""Selects those of the things `ids` that have left, if the project has no open response here, which
may need them."""
INNER = {name: column(f"{kind.inner}", UUID) for name, kind in KINDS.items() if kind.inner}
ON_LEAVING = {
    f"{name}.{number}": column(f"{text} RETURNING 1 AS done", int)
    for name, kind in KINDS.items()
    for number, text in enumerate(kind.left)
}

# --- the target ---

BEGIN_ARRIVING = column(
    """
    INSERT INTO project_moves (project_id, run) VALUES (:project, :run)
    ON CONFLICT (project_id) DO UPDATE SET run = excluded.run, began_at = clock_timestamp() RETURNING run
    """,
    UUID,
)
"""Imports of an earlier command are refused from now on."""
LOCK_RUN = column(
    "SELECT run FROM project_moves WHERE project_id = :project AND run = :run FOR SHARE", UUID
)
"""No row: another command has begun to move the project."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that the target has."""

    id: UUID
    version: str | None


COPIES = {
    name: Query(
        f"""
        SELECT t.id, {kind.version} AS version FROM {name} t
        WHERE t.id = {_IDS} AND t.project_id = :project AND {kind.seen}
          AND EXISTS (SELECT 1 FROM moved_things m WHERE m.id = {kind.mark})
        """,
        Copy,
    )
    for name, kind in KINDS.items()
}
"""Selects those of the things `ids` of which there are copies here."""
GONE = {
    name: column(
        f"""
        SELECT t.id FROM moved_things m JOIN {name} t ON m.id = {kind.mark}
        WHERE m.project_id = :project AND m.is_copy AND {_in_window("t")} AND {kind.seen} AND NOT t.id = {_IDS}
          AND {_in_window("m") if kind.mark == "t.id" else "true"}
        """,
        UUID,
    )
    for name, kind in KINDS.items()
}
"""Selects the copies of a window whose things, not among `ids`, the source has no more."""
ON_DROPPING = {
    name: column(f"{kind.dropped} RETURNING 1 AS done", int) for name, kind in KINDS.items()
}
STRANGE = {
    name: column(
        f"""
        SELECT t.id FROM {name} t WHERE t.id = {_IDS}
          AND NOT (t.project_id = :project AND EXISTS (SELECT 1 FROM moved_things m WHERE m.id = {kind.mark}))
        """,
        UUID,
    )
    for name, kind in KINDS.items()
}
"""Selects those of the things `ids` that this cell has of its own, or of another project."""
NOTE_COPIES = column(
    """
    INSERT INTO moved_things (id, project_id, is_copy)
    SELECT id, :project, true FROM unnest(CAST(:ids AS uuid[])) AS given (id)
    ON CONFLICT (id) DO UPDATE SET is_copy = true WHERE moved_things.project_id = :project RETURNING id
    """,
    UUID,
)
SETTLE = column(
    f"DELETE FROM moved_things WHERE id = {_IDS} AND project_id = :project RETURNING id", UUID
)
"""The things are this cell's own now."""
ON_SETTLING = {
    f"{name}.{number}": column(f"{text} RETURNING 1 AS done", int)
    for name, kind in KINDS.items()
    for number, text in enumerate(kind.settled)
}
ON_REPLACING = {
    f"{name}.{number}": column(f"{text} RETURNING 1 AS done", int)
    for name, kind in KINDS.items()
    for number, text in enumerate(kind.replaced)
}
ON_ARRIVAL = {
    f"{name}.{number}": column(f"{text} RETURNING 1 AS done", int)
    for name, kind in KINDS.items()
    for number, text in enumerate(kind.arrived)
}


def _import(table: TravellingTable) -> Query[int]:
    """Items get new numbers, in the order in which they come."""
    rows = f"json_populate_recordset(NULL::{table.name}, CAST(:rows AS json)) r"
    if table.name == "items":
        rows = """jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS e (row, nr)
            CROSS JOIN LATERAL jsonb_populate_record(
                NULL::items, e.row || jsonb_build_object('id', nextval(pg_get_serial_sequence('items', 'id')))) r"""
    return column(
        f"""
        WITH given AS MATERIALIZED (SELECT r.* FROM {rows}),
             stored AS (INSERT INTO {table.name} SELECT r.* FROM given r WHERE {table.is_own}
                        ON CONFLICT {table.on_conflict} RETURNING 1)
        SELECT count(*) AS strange FROM given r WHERE ({table.is_own}) IS NOT TRUE
        """,
        int,
    )


DELETE_STALE = column(
    """
    DELETE FROM responses x USING json_populate_recordset(NULL::responses, CAST(:rows AS json)) r
    WHERE x.id = r.id AND x.project_id = :project AND EXISTS (SELECT 1 FROM moved_things m WHERE m.id = x.id OFFSET 0)
    RETURNING x.id
    """,
    UUID,
)
"""Deletes those of the responses `rows` that are copies, or have left this cell before."""
IMPORT = {
    f"{name}.{table.name}": _import(table) for name, kind in KINDS.items() for table in kind.tables
}
"""Inserts rows. How many of them are not those of the project and of the things `ids`."""
BEGIN_FILE = column(
    """
    WITH freed AS (UPDATE file_parts SET number = NULL, abandoned = true WHERE file_id = :id)
    INSERT INTO files SELECT r.* FROM jsonb_populate_record(NULL::files, CAST(:row AS jsonb) || jsonb_build_object(
        'completed_at', NULL, 'delete_requested_at', NULL,
        'expires_at', clock_timestamp() + CAST(:upload_time AS interval))) r
    WHERE r.id = :id AND r.project_id = :project
    ON CONFLICT (id) DO UPDATE SET completed_at = NULL, delete_requested_at = NULL, expires_at = excluded.expires_at
    RETURNING files.id
    """,
    UUID,
)
"""Begins a file, also anew. No row: it is of another project."""
FINISH_FILE = column(
    """
    UPDATE files f SET completed_at = r.completed_at, expires_at = r.expires_at
    FROM jsonb_populate_record(NULL::files, CAST(:row AS jsonb)) r
    WHERE f.id = :id AND f.project_id = :project AND f.bytes = CAST(:bytes AS bigint) AND f.completed_at IS NULL
      AND f.delete_requested_at IS NULL AND r.completed_at IS NOT NULL
    RETURNING f.id
    """,
    UUID,
)
"""Makes it complete, as it is in the source. No row: it is deleted, or has another size."""
