"""Endpoints of webhooks, and what was and is to be delivered to them."""

from sqlalchemy import (
    ARRAY,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    func,
    text,
)

from models.db.tables.base import TIMESTAMP, metadata

webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column(
        "project_id",
        Uuid,
        ForeignKey("projects.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("name", Text, nullable=False, server_default=""),
    Column("url", Text, nullable=False),
    Column("types", ARRAY(Text), nullable=False, doc="of events; empty: all"),
    Column("created_at", TIMESTAMP, nullable=False, server_default=func.now()),
    Column("updated_at", TIMESTAMP),
    Column("deleted_at", TIMESTAMP, doc="hidden since then; the purge deletes it"),
    Column("secret_key_id", Text, nullable=False, doc="the key that sealed the secrets"),
    Column("secrets", LargeBinary, nullable=False, doc="sealed: the newest one first"),
    Column("old_secret_until", TIMESTAMP, doc="end of a rotation: the second one signs too"),
    Column("disabled_at", TIMESTAMP),
    Column("disabled_reason", Text),
    Column(
        "failures",
        Integer,
        nullable=False,
        server_default=text("0"),
        doc="tries in a row that failed",
    ),
    Column("failing_since", TIMESTAMP),
    Column("paused_until", TIMESTAMP, doc="nothing is tried before that"),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column(
        "endpoint_id",
        Uuid,
        ForeignKey("webhook_endpoints.id", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("event_id", Uuid, nullable=False),
    Column("type", Text, nullable=False),
    Column("object_id", Text, nullable=False, doc="the public id of the response"),
    Column("created_at", TIMESTAMP, nullable=False, server_default=func.clock_timestamp()),
    Column("resent_at", TIMESTAMP, doc="tries begin again from then on"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column(
        "next_attempt_at",
        TIMESTAMP,
        server_default=func.clock_timestamp(),
        doc="while a worker tries it, when another one may; null: it has ended",
    ),
    Column("delivered_at", TIMESTAMP),
    Column("last_status", Integer, doc="the HTTP status of the last try"),
    Column("last_error", Text, doc="why the last try failed, if there was no status"),
    Index(
        "ix_webhook_deliveries_waiting",
        "endpoint_id",
        "next_attempt_at",
        postgresql_where=text("next_attempt_at IS NOT NULL"),
    ),
    Index("ix_webhook_deliveries_created_at", "created_at"),
    Index("ix_webhook_deliveries_endpoint_id", "endpoint_id", "created_at"),
    Index("ix_webhook_deliveries_event_id", "event_id"),
)
