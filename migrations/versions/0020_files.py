"""Files: what a project has uploaded, and the stored objects that are their content

Additive: processes of the previous release do not know these tables.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_TIMESTAMP = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column(
            "bytes",
            sa.BigInteger(),
            nullable=False,
            comment="until it is complete: as many as are reserved for it",
        ),
        sa.Column("media_type", sa.Text(), comment="what its bytes were found to be"),
        sa.Column(
            "created_at", _TIMESTAMP, server_default=sa.func.clock_timestamp(), nullable=False
        ),
        sa.Column("completed_at", _TIMESTAMP, comment="null: it is still being written"),
        sa.Column("lifetime", sa.Interval(), comment="after its creation, once it is complete"),
        sa.Column(
            "expires_at",
            _TIMESTAMP,
            comment="null: it is kept until it is deleted; until it is complete: the end of its upload",
        ),
        sa.Column("delete_requested_at", _TIMESTAMP, comment="from then on nobody sees it"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_files_project_id")),
    )
    op.create_index("ix_files_project_id", "files", ["project_id", "id"])
    op.create_index(
        "ix_files_expires_at",
        "files",
        ["expires_at"],
        postgresql_where=sa.text("expires_at IS NOT NULL AND delete_requested_at IS NULL"),
    )
    op.create_index(
        "ix_files_deleted",
        "files",
        ["delete_requested_at"],
        postgresql_where=sa.text("delete_requested_at IS NOT NULL"),
    )
    op.create_table(
        "file_parts",
        sa.Column("id", sa.Uuid(), nullable=False, comment="names the stored object"),
        sa.Column("file_id", sa.Uuid(), nullable=False),
        sa.Column(
            "number", sa.Integer(), comment="its place in the content; null: not part of it yet"
        ),
        sa.Column("bytes", sa.BigInteger(), comment="null: it is still being written"),
        sa.Column(
            "created_at", _TIMESTAMP, server_default=sa.func.clock_timestamp(), nullable=False
        ),
        sa.Column(
            "abandoned",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="its object is to be deleted",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_file_parts")),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], name=op.f("fk_file_parts_file_id")),
    )
    op.create_index("ix_file_parts_number", "file_parts", ["file_id", "number"], unique=True)
    op.create_index(
        "ix_file_parts_unused",
        "file_parts",
        ["created_at"],
        postgresql_where=sa.text("number IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("file_parts")
    op.drop_table("files")
