"""The line: responses that wait for a slot, by lane and project

`ix_responses_line` replaces `ix_responses_backlog`, which no release has used. Processes of the
previous release insert responses in the lane `default`. The index is built without blocking writes.
If the build is interrupted, it leaves an invalid index of the same name, so it is dropped first.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_OPEN = "status IN ('queued', 'in_progress')"
_LINE = (
    "(background, lane, project_id, (coalesce(resume_at, started_at, enqueued_at)))"
    f" WHERE worker IS NULL AND {_OPEN} AND deaths = 0"
    " AND cancel_requested_at IS NULL AND fail_requested_at IS NULL"
)
_BACKLOG = (
    "(enqueued_at) WHERE worker IS NULL AND (status = 'queued' AND background"
    " AND cancel_requested_at IS NULL AND fail_requested_at IS NULL"
    " AND requeue_requested_at IS NULL)"
)


def upgrade() -> None:
    lane = sa.Column(
        "lane",
        sa.SmallInteger,
        nullable=False,
        server_default=sa.text("1"),
        comment="0 priority, 1 default, 2 flex, 3 batch: which responses go first (ADR 0041)",
    )
    confirmed = sa.Column(
        "confirmed",
        sa.Boolean,
        nullable=False,
        server_default=sa.text("false"),
        comment="a worker has received its id, so its create was answered (ADR 0041)",
    )
    op.add_column("responses", lane)
    op.add_column("responses", confirmed)
    _replace("ix_responses_backlog", "ix_responses_line", _LINE)


def downgrade() -> None:
    _replace("ix_responses_line", "ix_responses_backlog", _BACKLOG)
    op.drop_column("responses", "confirmed")
    op.drop_column("responses", "lane")


def _replace(old: str, new: str, definition: str) -> None:
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {new}")
        op.execute(f"CREATE INDEX CONCURRENTLY {new} ON responses {definition}")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {old}")
