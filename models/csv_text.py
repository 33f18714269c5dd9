"""Tables as CSV, for spreadsheets: a text of a client never becomes a formula there."""

import csv
import io
from collections.abc import Iterable, Sequence

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a cell begins with that a spreadsheet may run."""


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The table with its head, in lines as RFC 4180 has them. None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(head)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    """A text that a spreadsheet would run gets an apostrophe before it. Numbers stay as they
    are."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
