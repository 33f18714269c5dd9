"""the operator's view: attempts, when blocks were stored, and what operators ask for"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column(
            "worker",
            sa.Uuid(),
            nullable=False,
            comment="no foreign key: this outlives the worker's row, and so names its process as well",
        ),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column(
            "claimed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "turns_ended_at",
            sa.ARRAY(sa.DateTime(timezone=True)),
            server_default=sa.text("'{}'"),
            nullable=False,
            comment="of each turn that another followed",
        ),
        sa.Column(
            "outcome", sa.Text(), nullable=True, comment="null: it runs, or has ended the response"
        ),
        sa.Column(
            "ended_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="with an outcome; of one that died: when its lease ran out",
        ),
        sa.CheckConstraint(
            "outcome IN ('handed_over', 'requeued', 'returned', 'died')",
            name=op.f("ck_attempts_outcome"),
        ),
        sa.ForeignKeyConstraint(
            ["response_id"],
            ["responses.id"],
            name=op.f("fk_attempts_response_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("response_id", "attempt", name=op.f("pk_attempts")),
    )
    # In two steps: with a volatile default at once the whole event log would be written anew, and
    # old blocks would get a time that is wrong.
    op.add_column("event_log", sa.Column("stored_at", sa.DateTime(timezone=True), nullable=True))
    op.alter_column("event_log", "stored_at", server_default=sa.text("clock_timestamp()"))
    op.add_column(
        "responses",
        sa.Column(
            "requeue_requested_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="an operator wants another worker to go on with it; null again once it was given up",
        ),
    )
    op.add_column(
        "responses",
        sa.Column(
            "fail_requested_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="an operator wants it to end as failed",
        ),
    )
    op.add_column(
        "workers",
        sa.Column(
            "drain_requested_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="an operator wants it to hand over and go; its heartbeat sees that",
        ),
    )


def downgrade() -> None:
    op.drop_column("workers", "drain_requested_at")
    op.drop_column("responses", "fail_requested_at")
    op.drop_column("responses", "requeue_requested_at")
    op.drop_column("event_log", "stored_at")
    op.drop_table("attempts")
