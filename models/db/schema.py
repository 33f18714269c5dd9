"""Which releases run on which schema: the revisions of the migrations, which are ordered texts.

Each migration stores the oldest revision whose release still runs on the new schema. So processes
of an older release know after a migration whether they may go on (docs/deploy.md, "Upgrading").
"""

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alembic.config import Config

_MIGRATIONS = Path(__file__).parents[2] / "migrations"
"""Beside this package in a checkout, in the image and in an installed wheel."""


class SchemaState(StrEnum):
    """Whether this release runs on the schema of the database."""

    OK = "ok"
    TOO_OLD = "too old for this version: run `backburner migrate`"
    TOO_NEW = "of another version: start the newer one, or make a database from before 0.1.0 anew"


def migrations_config() -> "Config":
    """Alembic's configuration with the migrations of this release."""
    # Only a migration needs it: its import would be a quarter of the start of a web process.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def functions() -> bytes:
    """The statements that make the functions and triggers of this release, whatever there is."""
    return (_MIGRATIONS / "functions.sql").read_bytes()


@cache
def newest_revision() -> str:
    """The newest migration of this release: a file has the name of its revision."""
    return max(file.stem for file in (_MIGRATIONS / "versions").glob("[0-9]*.py"))


def schema_state(revision: str, oldest_revision: str) -> SchemaState:
    """`revision`: that of the database. `oldest_revision`: the oldest one whose release runs on
    it."""
    if revision < newest_revision():
        return SchemaState.TOO_OLD
    if newest_revision() < oldest_revision:
        return SchemaState.TOO_NEW
    return SchemaState.OK
