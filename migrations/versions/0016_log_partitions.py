"""The event log is partitioned by the time at which its responses were created"""

import time
from uuid import UUID

from alembic import op
from sqlalchemy import text

from models.ids import first_id_at

revision = "0016_log_partitions"
down_revision = "0014_container_hosts"
branch_labels = None
depends_on = None

# Additive: processes of the release before find the same table with the same columns. The table
# that they know becomes the first partition. That its rows fit is checked before, while all
# processes go on, and not under the lock.


def upgrade() -> None:
    newest = op.get_bind().execute(
        text("SELECT response_id FROM event_log ORDER BY response_id DESC LIMIT 1")
    )
    end = _first_end(newest.scalar())
    op.execute(
        "ALTER TABLE event_log DROP CONSTRAINT IF EXISTS ck_event_log_end,"
        f" ADD CONSTRAINT ck_event_log_end CHECK (response_id < '{end}') NOT VALID"
    )
    with op.get_context().autocommit_block():
        op.execute("ALTER TABLE event_log VALIDATE CONSTRAINT ck_event_log_end")
    # Without a foreign key: to drop a partition that has one locks `responses`. A trigger deletes
    # the log of a response that is deleted (migrations/functions.sql).
    op.execute(
        f"""
        LOCK TABLE responses, event_log IN ACCESS EXCLUSIVE MODE;
        ALTER TABLE event_log RENAME TO event_log_first;
        ALTER TABLE event_log_first RENAME CONSTRAINT pk_event_log TO pk_event_log_first;
        ALTER TABLE event_log_first DROP CONSTRAINT fk_event_log_response_id;
        CREATE TABLE event_log (
            LIKE event_log_first INCLUDING DEFAULTS,
            CONSTRAINT pk_event_log PRIMARY KEY (response_id, first_number)
        ) PARTITION BY RANGE (response_id);
        ALTER TABLE event_log ATTACH PARTITION event_log_first FOR VALUES FROM (MINVALUE) TO ('{end}');
        ALTER TABLE event_log_first DROP CONSTRAINT ck_event_log_end;
        CREATE TABLE event_log_rest PARTITION OF event_log DEFAULT;
        """
    )


def _first_end(newest: UUID | None) -> UUID:
    """Behind all ids of responses that are made within the next day: a full hour."""
    hour = 3600
    end = first_id_at((int(time.time()) // hour + 25) * hour)
    return end if newest is None or newest < end else UUID(int=newest.int + 1)
