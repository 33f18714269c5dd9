"""Indexes with which a sweep does not read the backlog: the responses that only wait for a worker

Processes of the previous release run on this schema. `ix_responses_deadline` replaces
`ix_responses_open`, which has the same rows in another order; no statement needs that order. The
other two replace `ix_responses_unowned`, which that release does not use. The indexes are built
without blocking writes. If a build is interrupted, it leaves an invalid index of the same name, so
each build drops that one first.
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_OPEN = "status IN ('queued', 'in_progress')"
_BACKLOG = (
    "(status = 'queued' AND background AND cancel_requested_at IS NULL"
    " AND fail_requested_at IS NULL AND requeue_requested_at IS NULL)"
)
_UNOWNED = f"worker IS NULL AND {_OPEN}"
_NEW = {
    "ix_responses_deadline": f"(deadline) WHERE {_OPEN}",
    "ix_responses_backlog": f"(enqueued_at) WHERE worker IS NULL AND {_BACKLOG}",
    "ix_responses_no_backlog": f"(enqueued_at) WHERE {_UNOWNED} AND NOT {_BACKLOG}",
}
_OLD = {
    "ix_responses_open": f"(enqueued_at) WHERE {_OPEN}",
    "ix_responses_unowned": f"(enqueued_at) WHERE {_UNOWNED}",
}


def upgrade() -> None:
    _replace(_OLD, _NEW)


def downgrade() -> None:
    _replace(_NEW, _OLD)


def _replace(old: dict[str, str], new: dict[str, str]) -> None:
    with op.get_context().autocommit_block():
        for name, definition in new.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON responses {definition}")
        for name in old:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
