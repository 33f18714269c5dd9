"""The failed requests of a batch again, and the models of a batch"""

from alembic import op

revision = "0007_batch_retries"
down_revision = "0006_retrying"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Additive: a worker of the release before leaves `models` null.
    op.execute(
        "ALTER TABLE batches ADD COLUMN models text[], ADD COLUMN retry_of uuid, "
        "ADD COLUMN retried_by uuid"
    )
