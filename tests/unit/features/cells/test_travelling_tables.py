"""Each table of a project travels with it to another cell, or is listed as one that stays."""

from features.cells.thing_queries import KINDS, STAYS
from models.db.tables import metadata

_WITHOUT_ROWS_OF_THEIR_OWN = {"files", "file_parts"}
"""They travel as bytes (features/cells/departure.py)."""


def test_each_table_of_a_project_travels_or_stays() -> None:
    travels = {
        table.name for kind in KINDS.values() for table in kind.tables
    } | _WITHOUT_ROWS_OF_THEIR_OWN
    belonging = {"projects"}
    while True:
        more = {
            name
            for name, table in metadata.tables.items()
            if {"project_id", "response_id"} & set(table.columns.keys())
            or any(key.column.table.name in belonging for key in table.foreign_keys)
        }
        if more <= belonging:
            break
        belonging |= more
    assert not travels & STAYS.keys()
    assert belonging == travels | STAYS.keys()
