"""What a project may do, and what each of its keys may do

Additive: processes of the previous release run on this schema. They accept every key that is not
revoked, whatever its scopes and its expiry. So restricted keys are made after the update.

`access_revision` counts the changes of projects and keys that all processes must notice at once.
Triggers count them, so that no writer can forget it. A new key is no such change: nobody can have
cached it.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_PROJECT_COLUMNS = (
    sa.Column(
        "policy",
        JSONB(),
        nullable=False,
        server_default=sa.text("'{}'"),
        comment="models/projects/policy.py; what it does not name is as the settings say",
    ),
    sa.Column(
        "weight",
        sa.Integer(),
        nullable=False,
        server_default=sa.text("1"),
        comment="its share of the slots while projects compete for them",
    ),
    sa.Column(
        "archived_at",
        sa.DateTime(timezone=True),
        comment="from then on none of its keys is valid, for ever",
    ),
)
_KEY_COLUMNS = (
    sa.Column("name", sa.Text(), comment="what the operator calls it"),
    sa.Column(
        "scopes",
        sa.ARRAY(sa.Text()),
        nullable=False,
        server_default=sa.text("'{responses}'"),
        comment="what requests with it may do: models/projects/scopes.py",
    ),
    sa.Column(
        "allowed_models", sa.ARRAY(sa.Text()), comment="names and patterns; null: all models"
    ),
    sa.Column("expires_at", sa.DateTime(timezone=True)),
    sa.Column("created_by", sa.Uuid(), comment="the key of the request that made it"),
    sa.Column("service_account_id", sa.Uuid()),
)
_TRIGGERS = {
    "projects": "UPDATE OF name, policy, weight, archived_at OR DELETE",
    "api_keys": (
        "UPDATE OF project_id, scopes, allowed_models, expires_at, revoked_at, hash OR DELETE"
    ),
}


def upgrade() -> None:
    for column in _PROJECT_COLUMNS:
        op.add_column("projects", column)
    op.create_check_constraint(op.f("ck_projects_weight"), "projects", "weight > 0")
    op.create_table(
        "service_accounts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_service_accounts")),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["projects.id"],
            name=op.f("fk_service_accounts_project_id"),
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_service_accounts_project_id", "service_accounts", ["project_id"])
    for column in _KEY_COLUMNS:
        op.add_column("api_keys", column)
    op.create_index("ix_api_keys_project_id", "api_keys", ["project_id"])
    op.create_table(
        "access_revision",
        sa.Column("single", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column(
            "number",
            sa.BigInteger(),
            nullable=False,
            comment="+1 with each change of a project or key that all processes must notice",
        ),
        sa.CheckConstraint("single", name=op.f("ck_access_revision_single")),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_access_revision")),
    )
    op.execute("INSERT INTO access_revision (number) VALUES (1)")
    op.execute(
        """
        CREATE OR REPLACE FUNCTION count_access_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            EXECUTE format('UPDATE %I.access_revision SET number = number + 1', TG_TABLE_SCHEMA);
            RETURN NULL;
        END $$
        """
    )
    for table, changes in _TRIGGERS.items():
        op.execute(
            f"CREATE TRIGGER {table}_changed AFTER {changes} ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION count_access_change()"
        )


def downgrade() -> None:
    for table in _TRIGGERS:
        op.execute(f"DROP TRIGGER {table}_changed ON {table}")
    op.execute("DROP FUNCTION IF EXISTS count_access_change()")
    op.drop_table("access_revision")
    op.drop_index("ix_api_keys_project_id", "api_keys")
    for column in _KEY_COLUMNS:
        op.drop_column("api_keys", column.name)
    op.drop_table("service_accounts")
    op.drop_constraint(op.f("ck_projects_weight"), "projects")
    for column in _PROJECT_COLUMNS:
        op.drop_column("projects", column.name)
