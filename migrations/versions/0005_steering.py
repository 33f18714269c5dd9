"""Input that arrives while a response runs"""

from alembic import op

revision = "0005_steering"
down_revision = "0004_windows"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE responses ADD COLUMN steers integer DEFAULT 0 NOT NULL")
    op.execute("""
        CREATE TABLE steers (
            id uuid NOT NULL,
            response_id uuid NOT NULL,
            number integer NOT NULL,
            state text DEFAULT 'queued' NOT NULL,
            input json,
            items jsonb,
            size bigint NOT NULL,
            created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
            settled_at timestamptz,
            successor_id uuid,
            required_input jsonb,
            error_code text,
            CONSTRAINT pk_steers PRIMARY KEY (id),
            CONSTRAINT uq_steers_response_id UNIQUE (response_id, number),
            CONSTRAINT fk_steers_response_id_responses
                FOREIGN KEY (response_id) REFERENCES responses (id) ON DELETE CASCADE,
            CONSTRAINT ck_steers_state CHECK (state IN ('queued', 'pending', 'committed', 'failed'))
        )
    """)
    op.execute(
        "CREATE INDEX ix_steers_successor_id ON steers (successor_id) WHERE successor_id IS NOT NULL"
    )
