"""responses.enqueue_count replaces rings; plain comments

Processes of the previous release run on this schema. They count in `rings` and write `streamed`. So
both columns stay, with defaults. The migration of the next release drops them (models/db/tables,
RETIRED_COLUMNS).
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_OPEN = "status IN ('queued', 'in_progress')"
_COMMENTS = [
    # table, column, the comment before, the comment from now on
    (
        "workers",
        "ended",
        "how it ended: stopped, or reaped by which worker",
        "how it ended: stopped, or reaped by which process",
    ),
    (
        "workers",
        "drain_requested_at",
        "an operator wants it to hand over and go; its heartbeat sees that",
        "an operator wants it to hand over its responses and stop",
    ),
    (
        "conversations",
        "revision",
        "+1 with everything said or begun in it",
        "+1 with every item added and every response started",
    ),
    (
        "conversations",
        "unanswered_calls",
        "call ids that must be answered next",
        "ids of the calls that must be answered next",
    ),
    (
        "responses",
        "conversation_id",
        "no foreign key: a response goes on saying where it was said",
        "no foreign key: kept after the conversation is deleted",
    ),
    (
        "responses",
        "upstream",
        "which answered the last turn, by its configured name",
        "the configured name of the upstream that answered the last turn",
    ),
    (
        "responses",
        "service_tier",
        "the tier that the upstream says it used",
        "the tier that the upstream reported",
    ),
    (
        "responses",
        "reason",
        "why it is incomplete, or our own finer word for a failure",
        "why it is incomplete, or a finer code for a failure",
    ),
    (
        "responses",
        "worker",
        "the owner; null when nobody runs it",
        "the owner; null if no process owns it",
    ),
    (
        "responses",
        "web",
        "the web process a foreground client waits at; no foreign key, so that forgetting a process scans nothing",
        "the web process that stored it, where a foreground client waits; no foreign key, so that deleting a process scans nothing",
    ),
    (
        "responses",
        "deaths",
        "owners that died since the last checkpoint",
        "owners that crashed since the last checkpoint",
    ),
    (
        "responses",
        "enqueued_at",
        "when its bell was rung last",
        "when it was last put into the Celery queue",
    ),
    (
        "responses",
        "resume_at",
        "put off: nobody is to take it before, unless to end it",
        "deferred: not claimed before this time, except to end it",
    ),
    (
        "responses",
        "delete_requested_at",
        "gone from the API; purged once it has ended",
        "hidden from the API; deleted once it has ended",
    ),
    (
        "responses",
        "requeue_requested_at",
        "an operator wants another worker to go on with it; null again once it was given up",
        "an operator wants another worker to run it; null again once it was released",
    ),
    (
        "responses",
        "cache_key",
        "under which its answer is remembered, where the request asked for that",
        "the cache key of its answer, if the request asked for that",
    ),
    (
        "responses",
        "cache_ttl",
        "for how many seconds; null: the answer was itself a remembered one",
        "for how many seconds the answer is cached; null: it came from the cache",
    ),
    (
        "items",
        "conversation_id",
        "set when it becomes part of it: added directly, or with the end of its response",
        "set when it becomes part of the conversation: added directly, or with the end of its response",
    ),
    (
        "items",
        "turn",
        "of tool_calls, once its response is gone",
        "copied from tool_calls when its response is deleted",
    ),
    (
        "items",
        "answer",
        "of tool_calls, once its response is gone",
        "copied from tool_calls when its response is deleted",
    ),
    (
        "tool_calls",
        "turn",
        "in which the model asked for it; 0: before the first",
        "the turn in which the model asked for it; 0: before the first",
    ),
    (
        "tool_calls",
        "started_attempt",
        "the attempt that began to run it last; not finished besides: its outcome is unknown",
        "the attempt that began to run it last; if it is not finished, its outcome is unknown",
    ),
    (
        "tool_calls",
        "answer",
        "what the model was told, where the item does not say it: a text, or parts",
        "what the model received, where the item does not contain it: a text, or parts",
    ),
    (
        "event_log",
        "frames",
        "the SSE bytes as every reader gets them",
        "the SSE bytes that every reader receives",
    ),
    (
        "attempts",
        "worker",
        "no foreign key: this outlives the worker's row, and so names its process as well",
        "no foreign key: this row is kept longer than the worker's, so it also names the process",
    ),
    (
        "attempts",
        "ended_at",
        "with an outcome; of one that died: when its lease ran out",
        "set with an outcome; after a crash: when the lease ran out",
    ),
    (
        "journal",
        "batch",
        "0 is the marker written at registration",
        "0 is the marker that is written at registration",
    ),
]


def upgrade() -> None:
    op.add_column(
        "responses",
        sa.Column(
            "enqueue_count",
            sa.SmallInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="how often it was put into the Celery queue again since it was last released",
        ),
    )
    op.alter_column("responses", "streamed", server_default=sa.text("false"))
    op.execute(f"UPDATE responses SET enqueue_count = rings WHERE {_OPEN} AND rings > 0")
    for table, column, _, comment in _COMMENTS:
        _set_comment(table, column, comment)


def downgrade() -> None:
    for table, column, comment, _ in _COMMENTS:
        _set_comment(table, column, comment)
    op.execute(f"UPDATE responses SET rings = enqueue_count WHERE {_OPEN} AND enqueue_count > 0")
    op.alter_column("responses", "streamed", server_default=None)
    op.drop_column("responses", "enqueue_count")


def _set_comment(table: str, column: str, comment: str) -> None:
    quoted = comment.replace("'", "''")
    op.execute(f"COMMENT ON COLUMN {table}.{column} IS '{quoted}'")
