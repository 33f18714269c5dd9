"""The audit log, which only grows

Additive: processes of the previous release run on this schema and add nothing to it.

The triggers refuse to change an entry, and to delete one, unless the transaction has said that it
deletes by age, and even then one of the last day. They protect against mistakes and against SQL that
a client smuggles in; the owner of the table can drop them.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("actor", sa.Text(), nullable=False, comment="key, operator, server or unknown"),
        sa.Column("key_id", sa.Uuid(), comment="no foreign key: entries outlive keys"),
        sa.Column("key_prefix", sa.Text()),
        sa.Column("os_user", sa.Text(), comment="the operator who ran a command"),
        sa.Column("project", sa.Text(), comment="the name that the project had"),
        sa.Column(
            "address", sa.Text(), comment="of the client, or the host on which a command ran"
        ),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("object", sa.Text(), comment="the public id or the name of what it was done to"),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text()),
        sa.Column("details", JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_at", "audit", ["at", "id"])
    op.execute(
        """
        CREATE OR REPLACE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'DELETE' THEN
                IF OLD.at < least(nullif(current_setting('backburner.audit_expires_before', true), '')::timestamptz,
                                  clock_timestamp() - interval '1 day')
                   AND nullif(current_setting('backburner.audit_expires_before', true), '') IS NOT NULL THEN
                    RETURN OLD;
                END IF;
            END IF;
            RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON audit "
        "FOR EACH ROW EXECUTE FUNCTION refuse_audit_change()"
    )
    op.execute(
        "CREATE TRIGGER audit_is_not_emptied BEFORE TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
    )


def downgrade() -> None:
    op.drop_table("audit")
    op.execute("DROP FUNCTION IF EXISTS refuse_audit_change()")
