"""item references, and the tier that was used"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # CONCURRENTLY: `items` is the largest table, and no other session should wait for the index. An
    # earlier try may have left an invalid index. This block is first, because it commits everything
    # before it.
    with op.get_context().autocommit_block():
        op.drop_index(
            "ix_items_item_id", table_name="items", if_exists=True, postgresql_concurrently=True
        )
        op.create_index(
            "ix_items_item_id",
            "items",
            ["item_id", "id"],
            unique=False,
            postgresql_concurrently=True,
        )
    op.add_column(
        "responses",
        sa.Column(
            "service_tier",
            sa.Text(),
            nullable=True,
            comment="the tier that the upstream says it used",
        ),
    )


def downgrade() -> None:
    op.drop_index("ix_items_item_id", table_name="items")
    op.drop_column("responses", "service_tier")
