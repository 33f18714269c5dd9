"""Projects, their API keys and service accounts."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from models.db.tables.base import TIMESTAMP, metadata

projects = Table(
    "projects",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("created_at", TIMESTAMP, nullable=False, server_default=func.now()),
    Column(
        "policy",
        JSONB,
        nullable=False,
        server_default=text("'{}'"),
        doc="models/projects/policy.py; what it does not name is as the settings say",
    ),
    Column(
        "weight",
        Integer,
        nullable=False,
        server_default=text("1"),
        doc="its share of the slots while projects compete for them",
    ),
    Column("archived_at", TIMESTAMP, doc="from then on none of its keys is valid, for ever"),
    Column(
        "cancelled",
        Boolean,
        nullable=False,
        server_default=text("false"),
        doc="of one that was archived: all that was open was cancelled",
    ),
    CheckConstraint("weight > 0", name="weight"),
)

service_accounts = Table(
    "service_accounts",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column(
        "project_id",
        Uuid,
        ForeignKey("projects.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("name", Text, nullable=False),
    Column("created_at", TIMESTAMP, nullable=False, server_default=func.now()),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column(
        "project_id",
        Uuid,
        ForeignKey("projects.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("prefix", Text, nullable=False, doc="the first characters, to recognise a key by"),
    Column("hash", LargeBinary, nullable=False, unique=True, doc="SHA-256 of the whole key"),
    Column("created_at", TIMESTAMP, nullable=False, server_default=func.now()),
    Column("last_used_at", TIMESTAMP),
    Column("revoked_at", TIMESTAMP),
    Column("name", Text, doc="what the operator calls it"),
    Column(
        "scopes",
        ARRAY(Text),
        nullable=False,
        server_default=text("'{responses}'"),
        doc="what requests with it may do: models/projects/scopes.py",
    ),
    Column("allowed_models", ARRAY(Text), doc="names and patterns; null: all models"),
    Column("expires_at", TIMESTAMP),
    Column("created_by", Uuid, doc="the key of the request that made it"),
    Column("service_account_id", Uuid),
)

access_revision = Table(
    "access_revision",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    Column(
        "number",
        BigInteger,
        nullable=False,
        doc="+1 with each change of a project or key that all processes must notice",
    ),
    CheckConstraint("single", name="single"),
)
