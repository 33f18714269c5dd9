"""The console: its sessions and one-time links, and what processes state about themselves

Additive: processes of the previous release do not know the tables, and leave the columns null.
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "console_sessions",
        sa.Column(
            "hash", sa.LargeBinary(), nullable=False, comment="SHA-256 of the token in the cookie"
        ),
        sa.Column("role", sa.Text(), nullable=False, comment="operator or read_only"),
        sa.Column("name", sa.Text(), nullable=False, comment="who it is, for the audit log"),
        sa.Column(
            "created_at", _TIMESTAMP, server_default=sa.func.clock_timestamp(), nullable=False
        ),
        sa.Column("expires_at", _TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_console_sessions")),
    )
    op.create_table(
        "console_links",
        sa.Column(
            "hash", sa.LargeBinary(), nullable=False, comment="SHA-256 of the token in the link"
        ),
        sa.Column("expires_at", _TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_console_links")),
    )
    op.add_column(
        "workers",
        sa.Column(
            "slots", sa.Integer(), comment="of a worker: the most responses that it runs at a time"
        ),
    )
    op.add_column("workers", sa.Column("version", sa.Text(), comment="the release that it runs"))


def downgrade() -> None:
    op.drop_column("workers", "version")
    op.drop_column("workers", "slots")
    op.drop_table("console_links")
    op.drop_table("console_sessions")
