"""conversations: an item may belong to a response and to a conversation"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_IN_A_CONVERSATION = sa.text("conversation_id IS NOT NULL")


def upgrade() -> None:
    # `items` is the largest table, and no other session should wait while it is read. So the indexes
    # (empty: no item is in a conversation yet) and the constraint come first, in steps that block no
    # writer. What an earlier try has left is dropped and created again.
    with op.get_context().autocommit_block():
        for name, column in (
            ("ix_items_conversation_id", "id"),
            ("ix_items_conversation_item", "item_id"),
        ):
            op.drop_index(name, table_name="items", if_exists=True, postgresql_concurrently=True)
            op.create_index(
                name,
                "items",
                ["conversation_id", column],
                unique=False,
                postgresql_where=_IN_A_CONVERSATION,
                postgresql_concurrently=True,
            )
        op.execute("ALTER TABLE items DROP CONSTRAINT IF EXISTS ck_items_owned")
        op.execute(
            "ALTER TABLE items ADD CONSTRAINT ck_items_owned CHECK (response_id IS NOT NULL OR conversation_id IS NOT NULL) NOT VALID"
        )
        op.execute("ALTER TABLE items VALIDATE CONSTRAINT ck_items_owned")
    op.add_column(
        "conversations",
        sa.Column(
            "revision",
            sa.BigInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="+1 with everything said or begun in it",
        ),
    )
    op.add_column(
        "conversations",
        sa.Column(
            "unanswered_calls",
            postgresql.ARRAY(sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
            comment="call ids that must be answered next",
        ),
    )
    op.add_column(
        "items",
        sa.Column(
            "turn", sa.Integer(), nullable=True, comment="of tool_calls, once its response is gone"
        ),
    )
    op.add_column(
        "items",
        sa.Column(
            "answer",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="of tool_calls, once its response is gone",
        ),
    )
    op.drop_constraint(op.f("ck_items_one_owner"), "items", type_="check")
    op.drop_constraint(op.f("uq_items_conversation_id"), "items", type_="unique")
    op.drop_constraint(op.f("fk_responses_conversation_id"), "responses", type_="foreignkey")
    op.alter_column(
        "items",
        "conversation_id",
        existing_type=sa.Uuid(),
        comment="set when it becomes part of it: added directly, or with the end of its response",
        existing_nullable=True,
    )
    op.alter_column(
        "responses",
        "conversation_id",
        existing_type=sa.Uuid(),
        comment="no foreign key: a response goes on saying where it was said",
        existing_nullable=True,
    )


def downgrade() -> None:
    # What only a conversation holds has no place in the schema before.
    op.execute("DELETE FROM items WHERE response_id IS NULL")
    op.execute("UPDATE items SET conversation_id = NULL WHERE conversation_id IS NOT NULL")
    op.execute("UPDATE responses SET conversation_id = NULL WHERE conversation_id IS NOT NULL")
    op.alter_column(
        "responses",
        "conversation_id",
        existing_type=sa.Uuid(),
        comment=None,
        existing_nullable=True,
    )
    op.alter_column(
        "items", "conversation_id", existing_type=sa.Uuid(), comment=None, existing_nullable=True
    )
    op.create_foreign_key(
        op.f("fk_responses_conversation_id"),
        "responses",
        "conversations",
        ["conversation_id"],
        ["id"],
        ondelete="SET NULL",
    )
    op.create_unique_constraint(
        op.f("uq_items_conversation_id"), "items", ["conversation_id", "position"]
    )
    op.drop_constraint(op.f("ck_items_owned"), "items", type_="check")
    op.create_check_constraint(
        op.f("ck_items_one_owner"), "items", "(response_id IS NULL) <> (conversation_id IS NULL)"
    )
    op.drop_column("items", "answer")
    op.drop_column("items", "turn")
    op.drop_column("conversations", "unanswered_calls")
    op.drop_column("conversations", "revision")
    op.drop_index("ix_items_conversation_item", table_name="items")
    op.drop_index("ix_items_conversation_id", table_name="items")
