"""Responses that wait for an upstream that has failed, and the upstream of those that failed"""

from alembic import op

revision = "0006_retrying"
down_revision = "0005_steering"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_responses_retrying": "failed_upstream IS NOT NULL AND status IN ('queued', 'in_progress')",
    "ix_responses_failed_upstream": "failed_upstream IS NOT NULL AND status = 'failed'",
}


def upgrade() -> None:
    # Additive: a worker of the release before leaves the columns as they are. Each step may be
    # repeated: the first ones are committed before the indexes are built.
    op.execute(
        "ALTER TABLE responses ADD COLUMN IF NOT EXISTS failed_upstream text,"
        " ADD COLUMN IF NOT EXISTS retrying_since timestamptz,"
        " ADD COLUMN IF NOT EXISTS failed_tries integer DEFAULT 0 NOT NULL"
    )
    # While responses are written: an index that is built in a transaction stops that.
    with op.get_context().autocommit_block():
        for name, condition in _INDEXES.items():
            op.execute(f"DROP INDEX IF EXISTS {name}")
            op.execute(
                f"CREATE INDEX CONCURRENTLY {name} ON responses (failed_upstream, id)"
                f" WHERE {condition}"
            )
