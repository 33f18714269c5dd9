"""Which releases run on which schema: the revisions of the migrations, which are ordered texts.

Each migration stores the oldest revision whose release still runs on the new schema. So processes
of an older release know after a migration whether they may go on (docs/deploy.md, "Upgrading").
"""

from enum import StrEnum
from functools import cache
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory

FIRST_WITH_COMPATIBILITY = "0009"
"""The first revision with the table `schema_compatibility`."""


class SchemaState(StrEnum):
    """Whether this release runs on the schema of the database."""

    OK = "ok"
    TOO_OLD = "too old for this version: run `backburner migrate`"
    TOO_NEW = "too new for this version: start the newer version"


def migrations_config() -> Config:
    """Alembic's configuration with the migrations of this release, which lie beside this package
    in a checkout, in the image and in an installed wheel."""
    config = Config()
    folder = Path(__file__).parents[2] / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


@cache
def newest_revision() -> str:
    """The newest migration of this release."""
    return ScriptDirectory.from_config(migrations_config()).get_current_head() or ""


def schema_state(revision: str, oldest_revision: str | None) -> SchemaState:
    """`revision`: that of the database. `oldest_revision`: the oldest one whose release runs on it;
    None if the database does not state it: then only its own."""
    if revision < newest_revision():
        return SchemaState.TOO_OLD
    if newest_revision() < (oldest_revision or revision):
        return SchemaState.TOO_NEW
    return SchemaState.OK
