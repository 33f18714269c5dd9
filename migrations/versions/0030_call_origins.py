"""What an upstream wants back with a tool call

Additive: the previous release leaves both columns null, so what its workers store goes back to the
upstreams without it. The index is built without blocking writes. If the build is interrupted, it
leaves an invalid index of the same name, so it is dropped first.
"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_INDEX = "ix_items_call_key"


def upgrade() -> None:
    op.add_column(
        "items",
        sa.Column(
            "origin",
            sa.Text(),
            comment="of a tool call: what its upstream wants back with it, sealed; null: nothing",
        ),
    )
    op.add_column(
        "items",
        sa.Column(
            "call_key",
            sa.Text(),
            comment=(
                "set with an origin: a digest of the project and of the id that clients send back"
            ),
        ),
    )
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {_INDEX}")
        op.execute(
            f"CREATE INDEX CONCURRENTLY {_INDEX} ON items (call_key, id) WHERE call_key IS NOT NULL"
        )


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {_INDEX}")
    op.drop_column("items", "call_key")
    op.drop_column("items", "origin")
