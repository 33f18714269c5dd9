"""Usage: what each ended response has used, by the minute for some days, and by the day for ever

Additive: processes of the previous release run on this schema. What their responses use is not
counted. `responses.api_key_id` and `responses.kept_for` are null in rows that they store.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_RESPONSE_COLUMNS = (
    sa.Column("api_key_id", sa.Uuid(), comment="the key of the request that made it"),
    sa.Column(
        "kept_for",
        sa.Interval(),
        comment="how long it is kept after its end; null: until expires_at, or as unstored ones",
    ),
)


def _counts() -> list[sa.Column[int]]:
    names = (
        "requests",
        "input_tokens",
        "cached_tokens",
        "output_tokens",
        "reasoning_tokens",
    )
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def _labels() -> list[sa.Column[str]]:
    return [
        sa.Column("api_key_id", sa.Uuid()),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text()),
        sa.Column("service_tier", sa.Text()),
    ]


def upgrade() -> None:
    for column in _RESPONSE_COLUMNS:
        op.add_column("responses", column)
    op.create_table(
        "usage_entries",
        sa.Column("project_id", sa.Uuid(), nullable=False, comment="no foreign key: it is kept"),
        sa.Column(
            "ended_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        *_labels(),
        *_counts(),
    )
    op.create_index("ix_usage_entries_project_id", "usage_entries", ["project_id", "ended_at"])
    op.create_index(
        "ix_usage_entries_ended_at", "usage_entries", ["ended_at"], postgresql_using="brin"
    )
    op.create_table(
        "usage_days",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False, comment="in UTC"),
        *_labels(),
        *_counts(),
    )
    op.create_index("ix_usage_days_project_id", "usage_days", ["project_id", "day"])
    op.create_index("ix_usage_days_day", "usage_days", ["day"])
    op.create_table(
        "usage_rollup",
        sa.Column("single", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column(
            "rolled_until",
            sa.Date(),
            nullable=False,
            comment="days before this one are in usage_days, all others only in usage_entries",
        ),
        sa.CheckConstraint("single", name=op.f("ck_usage_rollup_single")),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_usage_rollup")),
    )
    op.execute("INSERT INTO usage_rollup (rolled_until) VALUES ((now() AT TIME ZONE 'UTC')::date)")


def downgrade() -> None:
    for table in ("usage_rollup", "usage_days", "usage_entries"):
        op.drop_table(table)
    for column in _RESPONSE_COLUMNS:
        op.drop_column("responses", column.name)
