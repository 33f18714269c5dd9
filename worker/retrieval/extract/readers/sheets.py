"""Workbooks, by openpyxl."""

import warnings
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import BinaryIO

from openpyxl import load_workbook


def read_sheets(file: BinaryIO) -> Iterator[str]:
    """Each sheet: its name, then a line for each row that is not empty, cells divided by tabs. Of a
    formula, the value that was stored with it. Raises what the library raises."""
    warnings.simplefilter("ignore")  # about parts of a workbook that have no text
    workbook = load_workbook(file, read_only=True, data_only=True, keep_links=False)
    for sheet in workbook.worksheets:
        # What a sheet declares as its size may be wrong.
        sheet.reset_dimensions()
        yield f"{sheet.title}\n"
        for row in sheet.iter_rows(values_only=True):
            if line := "\t".join(map(_cell, row)).rstrip():
                yield f"{line}\n"
        yield "\n"


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer():
            return str(int(value))
        case datetime() if value.time() == time():
            return value.date().isoformat()
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return str(value)
