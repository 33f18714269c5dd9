"""Containers in which models run code, their files, and what ran in them (docs/code.md)."""

from sqlalchemy import ARRAY, BigInteger, Column, Index, Interval, Table, Text, Uuid

from models.db.tables.base import TIMESTAMP, count, metadata, optional, partial_index, required

containers = Table(
    "containers",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("project_id", Uuid, references="projects.id"),
    optional("api_key_id", Uuid, "the key of the request that made it"),
    required("name", Text),
    optional("memory_limit", Text, "as the client wants it: `1g`, …; null: it wants none"),
    required("idle_time", Interval, "it expires when it was not used for so long"),
    required("created_at", TIMESTAMP, default="clock_timestamp()"),
    required("last_active_at", TIMESTAMP, default="clock_timestamp()"),
    optional("sandbox", Text, "base URL of the sandbox with its session; null: it has none"),
    optional("session", Text, "the sandbox's id of that session, or of the last one"),
    optional("opening_until", TIMESTAMP, "until then it counts as one with a session"),
    optional("stop_requested_at", TIMESTAMP, "its session is to end"),
    optional("ending_until", TIMESTAMP, "the lease of the worker that ends its session"),
    optional("deleted_at", TIMESTAMP, "nobody sees it any more"),
    required(
        "allowed_domains", ARRAY(Text), "hosts that its code may reach; empty: none", default="'{}'"
    ),
    Index("ix_containers_project_id", "project_id", "id"),
    Index("ix_containers_last_active_at", "last_active_at"),
    partial_index(
        "ix_containers_sessions",
        "project_id",
        where="sandbox IS NOT NULL OR opening_until IS NOT NULL",
    ),
    partial_index("ix_containers_deleted_at", "deleted_at", where="deleted_at IS NOT NULL"),
)

container_files = Table(
    "container_files",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("container_id", Uuid, references="containers.id", cascade=True),
    required("path", Text, "below /mnt/data/"),
    required("file_id", Uuid, "files.id: its content; of the purpose `container`, or a client's"),
    required("bytes", BigInteger),
    required("source", Text, "`user` or `assistant`"),
    optional("session", Text, "the session that has this content; null: none"),
    required("created_at", TIMESTAMP, default="clock_timestamp()"),
    Index("ix_container_files_path", "container_id", "path", unique=True),
)

container_cells = Table(
    "container_cells",
    metadata,
    Column("id", Text, primary_key=True, doc="of the item of the call"),
    required("container_id", Uuid, "no foreign key: what was used still counts"),
    required("project_id", Uuid),
    required("session", Text, "where it begins; it never runs in another one"),
    required("began_at", TIMESTAMP, default="clock_timestamp()"),
    optional("ended_at", TIMESTAMP, "null: its result is not known"),
    count("cpu_ms", "of its processes, in milliseconds"),
    count("wall_ms"),
    Index("ix_container_cells_container_id", "container_id"),
    Index("ix_container_cells_project_id", "project_id", "began_at"),
    Index("ix_container_cells_began_at", "began_at", postgresql_using="brin"),
)
