"""A table for a spreadsheet runs nothing there."""

import csv
import io

from models.csv_text import csv_text


def test_a_text_that_begins_like_a_formula_is_a_text() -> None:
    hostile = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"]
    harmless = ["a=1", "5 - 3", "", 'a "quoted", text', "line\nbreak"]
    text = csv_text(["name", "n"], [[name, -1] for name in (*hostile, *harmless)])
    head, *rows = csv.reader(io.StringIO(text, newline=""))
    assert head == ["name", "n"]
    assert rows == [[f"'{name}", "-1"] for name in hostile] + [[name, "-1"] for name in harmless]


def test_what_is_not_known_is_an_empty_cell() -> None:
    assert csv_text(["a", "b"], [[None, 0]]) == "a,b\r\n,0\r\n"
