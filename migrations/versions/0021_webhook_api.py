"""What the API of webhook endpoints needs: names, times of changes, deletions in two steps

Additive: processes of the previous release run on this schema. For them a deleted endpoint is a
disabled one. The indexes are built without blocking writes. If a build is interrupted, it leaves an
invalid index of the same name, so it is dropped first.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_TIMESTAMP = sa.DateTime(timezone=True)
_INDEXES = (
    ("ix_webhook_deliveries_endpoint_id", "(endpoint_id, created_at)"),
    ("ix_webhook_deliveries_event_id", "(event_id)"),
)


def upgrade() -> None:
    op.add_column(
        "webhook_endpoints", sa.Column("name", sa.Text(), server_default="", nullable=False)
    )
    op.add_column("webhook_endpoints", sa.Column("updated_at", _TIMESTAMP))
    op.add_column(
        "webhook_endpoints",
        sa.Column("deleted_at", _TIMESTAMP, comment="hidden since then; the purge deletes it"),
    )
    op.add_column(
        "webhook_deliveries",
        sa.Column("resent_at", _TIMESTAMP, comment="tries begin again from then on"),
    )
    with op.get_context().autocommit_block():
        for name, columns in _INDEXES:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON webhook_deliveries {columns}")


def downgrade() -> None:
    with op.get_context().autocommit_block():
        for name, _ in _INDEXES:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    op.drop_column("webhook_deliveries", "resent_at")
    for name in ("deleted_at", "updated_at", "name"):
        op.drop_column("webhook_endpoints", name)
