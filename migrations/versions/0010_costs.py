"""What requests cost, sums of usage by hour, and activity by model, project and upstream"""

from alembic import op

revision = "0010_costs"
down_revision = "0009_search"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Additive: processes of the release before run on (docs/deploy.md, "Upgrading"). The cost of
    # what they end is not known.
    op.execute("ALTER TABLE responses ADD COLUMN cost bigint")
    op.execute("ALTER TABLE usage_entries ADD COLUMN cost bigint")
    op.execute("ALTER TABLE usage_days ADD COLUMN cost bigint, ADD COLUMN unpriced bigint")
    op.execute("ALTER TABLE usage_rollup ADD COLUMN hours_until timestamptz")
    op.execute("""
        CREATE TABLE usage_hours (
            project_id uuid NOT NULL,
            hour timestamptz NOT NULL,
            api_key_id uuid,
            model text NOT NULL,
            upstream text,
            service_tier text,
            kind text,
            batch boolean,
            completion_window text,
            requests bigint NOT NULL,
            input_tokens bigint NOT NULL,
            cached_tokens bigint NOT NULL,
            output_tokens bigint NOT NULL,
            reasoning_tokens bigint NOT NULL,
            units bigint,
            cost bigint,
            unpriced bigint
        )
    """)
    op.execute("CREATE INDEX ix_usage_hours_hour ON usage_hours (hour)")
    op.execute("""
        CREATE TABLE activity_parts (
            width smallint NOT NULL,
            kind text NOT NULL,
            begins_at timestamptz NOT NULL,
            name text NOT NULL,
            completed bigint DEFAULT 0 NOT NULL,
            failed bigint DEFAULT 0 NOT NULL,
            input_tokens bigint DEFAULT 0 NOT NULL,
            output_tokens bigint DEFAULT 0 NOT NULL,
            cost bigint DEFAULT 0 NOT NULL,
            CONSTRAINT pk_activity_parts PRIMARY KEY (width, kind, begins_at, name)
        )
    """)
    op.execute("ALTER TABLE activity ADD COLUMN cost bigint DEFAULT 0 NOT NULL")
