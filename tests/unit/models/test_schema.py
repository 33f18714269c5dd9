"""Which migration is the newest: web processes know it without Alembic."""

from alembic.script import ScriptDirectory

from models.db.schema import migrations_config, newest_revision


def test_the_newest_revision_is_the_one_that_alembic_ends_with() -> None:
    scripts = ScriptDirectory.from_config(migrations_config())
    assert newest_revision() == scripts.get_current_head()
