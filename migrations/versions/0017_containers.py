"""An index with which a request may name only the containers that its project's outputs have named

Additive. The index is built without blocking writes. If a build is interrupted, it leaves an invalid
index of the same name, so that one is dropped first.
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_items_container")
        op.execute(
            "CREATE INDEX CONCURRENTLY ix_items_container ON items"
            " (coalesce(payload ->> 'container_id', payload #>> '{environment,container_id}'))"
            " WHERE direction = 'output' AND type IN ('code_interpreter_call', 'shell_call')"
        )


def downgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_items_container")
