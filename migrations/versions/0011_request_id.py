"""The request id of each response, for operators

Additive: processes of the previous release run on this schema, and store no request ids. The index
is built without blocking writes. If that is interrupted, it leaves an invalid index of the same
name, which the next try drops first.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_INDEX = "ix_responses_request_id"


def upgrade() -> None:
    op.add_column(
        "responses",
        sa.Column(
            "request_id",
            sa.Text(),
            comment=(
                "x-request-id of the request that made it, as in the logs; null: a process of a "
                "release that did not record it"
            ),
        ),
    )
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {_INDEX}")
        op.execute(
            f"CREATE INDEX CONCURRENTLY {_INDEX} ON responses (request_id) "
            "WHERE request_id IS NOT NULL"
        )


def downgrade() -> None:
    op.drop_index(_INDEX, "responses")
    op.drop_column("responses", "request_id")
