"""What commands print: lines on standard error, JSON with stable keys, tables.

On a terminal, text is cut and wrapped to its width and states have colours. Anywhere else, each row
is one line with all of its text, for other programs.
"""

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any, TextIO, TypeVar

from models.time_text import format_time

GREEN, YELLOW, RED, GREY = "32", "33", "31", "90"
_STYLE = re.compile(r"\x1b\[\d*m")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_INDENT = "    "
_MIN_CUT = 8
"""Characters to which a column is cut at most."""

Rows = Sequence[Sequence[str]]
ItemT = TypeVar("ItemT")


def print_status(text: str) -> None:
    """Prints a line for the operator on standard error; standard output is for results. Colours as
    `print_result` prints them."""
    _print(text, sys.stderr)


def print_result(text: str) -> None:
    """Prints a result on standard output. Colours are left out unless that is a terminal, and if
    NO_COLOR is set (https://no-color.org)."""
    _print(text, sys.stdout)


def _print(text: str, stream: TextIO) -> None:
    has_colours = stream.isatty() and not os.environ.get("NO_COLOR")  # noqa: TID251 - not ours
    print(text if has_colours else _STYLE.sub("", text), file=stream, flush=True)


def paint(text: str, colour: str | None) -> str:
    """The text in this colour; `print_result` removes it where it is not wanted."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def clean(text: str) -> str:
    """A text of a client, a model or an upstream without characters that control a terminal."""
    return _CONTROL.sub(" ", text)


def clean_lines(text: str) -> str:
    """As `clean`, but lines stay lines."""
    return "\n".join(map(clean, text.split("\n")))


def terminal_width() -> int | None:
    """The width of the terminal; None if standard output is not one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_progress(text: str) -> None:
    """Prints a line on standard error if a person reads it there."""
    if sys.stderr.isatty():
        print_status(text)


def as_json(result: Any) -> str:
    """A result with its dataclasses as objects, times in ISO 8601 (UTC), durations in seconds."""
    return json.dumps(result, default=_json_default, indent=2, ensure_ascii=False)


def _json_default(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return format_time(value) if isinstance(value, datetime) else str(value)


def wrap(text: str, indent: str, first: str | None = None) -> str:
    """A text in lines of the terminal's width. `first` is before the first line, and `indent`
    before the others; without a terminal, one line."""
    begin = indent if first is None else first
    width = terminal_width()
    if width is None or width <= len(indent) + _MIN_CUT:
        return begin + text
    return textwrap.fill(
        text, width, initial_indent=begin, subsequent_indent=indent, break_on_hyphens=False
    )


def fitted_table(
    items: Sequence[ItemT],
    head: Sequence[str],
    row: Callable[[ItemT, bool], Sequence[str]],
    cuttable: Sequence[str] = (),
    *,
    empty: str,
) -> str:
    """A table that fits the terminal, or `empty` if it has no row. `row(item, short)`: its cells,
    with short forms of ids and times if the full ones do not fit.

    If that is not enough, the columns named `cuttable` are cut, and then the last column is on
    lines of its own. Without a terminal: full rows, one line each.
    """
    if not items:
        return empty
    width, full = terminal_width(), [row(each, False) for each in items]
    if width is None or _width(table(head, full)) <= width:
        return table(head, full)
    short = [row(each, True) for each in items]
    text = table(head, _cut(head, short, cuttable, width))
    if _width(text) <= width:
        return text
    head, reasons = head[:-1], [row[-1] for row in short]
    first, *lines = table(head, _cut(head, [row[:-1] for row in short], cuttable, width)).split(
        "\n"
    )
    return "\n".join(
        [
            first,
            *(
                f"{line}\n{wrap(reason, _INDENT)}" if reason else line
                for line, reason in zip(lines, reasons, strict=True)
            ),
        ]
    )


def _cut(head: Sequence[str], rows: Rows, cuttable: Sequence[str], width: int) -> Rows:
    """The rows with the widest of the `cuttable` columns made shorter, until the table fits."""
    widths = {
        column: max(visible_width(row[column]) for row in (head, *rows))
        for column in map(head.index, cuttable)
    }
    for _ in range(_width(table(head, rows)) - width):
        widest = max(widths, key=lambda column: widths[column], default=None)
        if widest is None or widths[widest] <= _MIN_CUT:
            break
        widths[widest] -= 1
    return [
        [
            f"{cell[: widths[column] - 1]}…" if len(cell) > widths.get(column, len(cell)) else cell
            for column, cell in enumerate(row)
        ]
        for row in rows
    ]


def visible_width(text: str) -> int:
    """Characters without those of colours."""
    return len(_STYLE.sub("", text))


def _width(text: str) -> int:
    return max(map(visible_width, text.split("\n")))


def table(head: Sequence[str], rows: Rows) -> str:
    """Lines with aligned columns; the last column is not padded."""
    widths = [
        max(visible_width(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)
    ]
    return "\n".join(
        "  ".join(
            [
                *(
                    cell + " " * (width - visible_width(cell))
                    for cell, width in zip(row[:-1], widths, strict=True)
                ),
                row[-1],
            ]
        ).rstrip()
        for row in (head, *rows)
    )
