"""Every create has idempotency keys, not only that of a response

A process of the previous release does not see the new rows as responses: a create of a response
with a key that another create has used is answered with 503 there.
"""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        ALTER TABLE idempotency_keys ALTER COLUMN response_id DROP NOT NULL,
            ADD COLUMN claim uuid, ADD COLUMN web uuid, ADD COLUMN made text, ADD COLUMN sealed bytea,
            ADD COLUMN lost boolean NOT NULL DEFAULT false
    """)


def downgrade() -> None:
    op.execute("DELETE FROM idempotency_keys WHERE response_id IS NULL")
    op.execute("""
        ALTER TABLE idempotency_keys ALTER COLUMN response_id SET NOT NULL,
            DROP COLUMN claim, DROP COLUMN web, DROP COLUMN made, DROP COLUMN sealed, DROP COLUMN lost
    """)
