"""Which styles of a workbook show a number as a date, or as a time that has passed."""

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final
from xml.etree.ElementTree import Element

from features.retrieval.extract.readers.package import OfficePackage, local_name

_BUILT_IN_DATES: Final = frozenset((*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)))
"""Numbers of the formats that need no definition and show dates and times (ECMA-376, 18.8.30)."""
_BUILT_IN_DURATION: Final = 46
_NO_LETTERS = re.compile(r'"[^"]*"|\\.|_.|\*.|\[(?!h|m|s)[^\]]*\]', re.IGNORECASE)
"""Texts, escaped characters, colours, languages and conditions."""
_DATE_LETTERS = re.compile(r"[ymdhs]", re.IGNORECASE)
_DURATION = re.compile(r"\[(h+|m+|s+)\]", re.IGNORECASE)


class NumberKind(Enum):
    """As what a number is shown."""

    DATE = auto()
    DURATION = auto()


Styles = Mapping[str, NumberKind]
"""The index of a style, as cells name it -> as what it shows a number."""


def date_styles(package: OfficePackage, main: str) -> Styles:
    """The styles that do not show a number as a number. Empty if the workbook's styles cannot be
    read: a date is shown as a number then."""
    for part in package.targets(main, "styles"):
        root = package.parse_or_none(part)
        if root is not None:
            return _date_styles(root)
    return {}


def _date_styles(root: Element) -> Styles:
    own = {
        element.get("numFmtId", ""): _shown(element.get("formatCode", ""))
        for element in root.iter()
        if local_name(element.tag) == "numFmt"
    }
    cells = next((each for each in root.iter() if local_name(each.tag) == "cellXfs"), ())
    formats = (style.get("numFmtId", "0") for style in cells if local_name(style.tag) == "xf")
    return {
        str(index): shown
        for index, number in enumerate(formats)
        if (shown := own[number] if number in own else _built_in(number)) is not None
    }


def _shown(code: str) -> NumberKind | None:
    letters = _NO_LETTERS.sub("", code.partition(";")[0])
    if not _DATE_LETTERS.search(letters):
        return None
    return NumberKind.DURATION if _DURATION.search(letters) else NumberKind.DATE


def _built_in(number: str) -> NumberKind | None:
    if not number.isdigit() or int(number) not in _BUILT_IN_DATES:
        return None
    return NumberKind.DURATION if int(number) == _BUILT_IN_DURATION else NumberKind.DATE
