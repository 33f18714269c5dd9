"""What the attempts of a response produce."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from models.db.tables.base import TIMESTAMP, metadata

items = Table(
    "items",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE")),
    Column(
        "conversation_id",
        Uuid,
        ForeignKey("conversations.id", ondelete="CASCADE"),
        doc=(
            "set when it becomes part of the conversation: added directly, or with the end "
            "of its response"
        ),
    ),
    Column("direction", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("item_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("turn", Integer, doc="copied from tool_calls when its response is deleted"),
    Column("answer", JSONB, doc="copied from tool_calls when its response is deleted"),
    Column(
        "size",
        BigInteger,
        nullable=False,
        doc="bytes of the payload and of its call's answer, and some for each value in them",
    ),
    Column(
        "origin",
        Text,
        doc=("of a tool call: what its upstream wants back with it, sealed; null: nothing"),
    ),
    Column(
        "call_key",
        Text,
        doc="set with an origin: a digest of the project and of the id that clients send back",
    ),
    CheckConstraint("direction IN ('input', 'output')", name="direction"),
    CheckConstraint("response_id IS NOT NULL OR conversation_id IS NOT NULL", name="owned"),
    UniqueConstraint("response_id", "direction", "position"),
    Index(
        "ix_items_conversation_id",
        "conversation_id",
        "id",
        postgresql_where=text("conversation_id IS NOT NULL"),
    ),
    Index(
        "ix_items_conversation_item",
        "conversation_id",
        "item_id",
        postgresql_where=text("conversation_id IS NOT NULL"),
    ),
    Index(
        "ix_items_call_key",
        "call_key",
        "id",
        postgresql_where=text("call_key IS NOT NULL"),
    ),
    # An item reference selects the newest item with its id. Clients choose ids, so very many items
    # may have the same one.
    Index("ix_items_item_id", "item_id", "id"),
    # A request may name a container of an upstream only if an output of its project did.
    Index(
        "ix_items_container",
        text("coalesce(payload ->> 'container_id', payload #>> '{environment,container_id}')"),
        postgresql_where=text(
            "direction = 'output' AND type IN ('code_interpreter_call', 'shell_call')"
        ),
    ),
)

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column(
        "position",
        Integer,
        primary_key=True,
        autoincrement=False,
        doc="of its item in the output",
    ),
    Column("output_index", Integer, nullable=False, doc="of its item in the stream"),
    Column(
        "turn",
        Integer,
        nullable=False,
        doc="the turn in which the model asked for it; 0: before the first",
    ),
    Column(
        "started_attempt",
        Integer,
        doc=(
            "the attempt that began to run it last; if it is not finished, its outcome is unknown"
        ),
    ),
    Column("finished", Boolean, nullable=False),
    Column(
        "answer",
        JSONB,
        doc="what the model received, where the item does not contain it: a text, or parts",
    ),
)

event_log = Table(
    "event_log",
    metadata,
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column("first_number", Integer, primary_key=True),
    Column("last_number", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("frames", LargeBinary, nullable=False, doc="the SSE bytes that every reader receives"),
    Column("stored_at", TIMESTAMP, nullable=False, server_default=text("clock_timestamp()")),
)

attempts = Table(
    "attempts",
    metadata,
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column(
        "worker",
        Uuid,
        nullable=False,
        doc=(
            "no foreign key: this row is kept longer than the worker's, so it also names "
            "the process"
        ),
    ),
    Column("kind", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("claimed_at", TIMESTAMP, nullable=False, server_default=text("clock_timestamp()")),
    Column(
        "turns_ended_at",
        ARRAY(TIMESTAMP),
        nullable=False,
        server_default=text("'{}'"),
        doc="of each turn that another followed",
    ),
    Column("outcome", Text, doc="null: it runs, or has ended the response"),
    Column("ended_at", TIMESTAMP, doc="set with an outcome; after a crash: when the lease ran out"),
    Column(
        "failures",
        JSONB,
        doc=(
            "each upstream that failed, with reason and message; a deferred attempt waits for the "
            "last one"
        ),
    ),
    CheckConstraint(
        "outcome IN ('handed_over', 'requeued', 'returned', 'deferred', 'died', 'error', "
        "'repeated')",
        name="outcome",
    ),
)

journal = Table(
    "journal",
    metadata,
    Column("worker", Uuid, primary_key=True),
    Column(
        "batch",
        BigInteger,
        primary_key=True,
        doc="0 is the marker that is written at registration",
    ),
    Column("response_ids", ARRAY(Uuid), nullable=False),
    Column("attempts", ARRAY(Integer), nullable=False),
    Column("first_numbers", ARRAY(Integer), nullable=False),
    Column("last_numbers", ARRAY(Integer), nullable=False),
    Column("frames", ARRAY(LargeBinary), nullable=False),
    prefixes=["UNLOGGED"],
    postgresql_with={
        "autovacuum_vacuum_threshold": "200",
        "autovacuum_vacuum_scale_factor": "0.0",
        "autovacuum_vacuum_cost_delay": "0",
    },
)
