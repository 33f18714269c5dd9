"""Workbooks (SpreadsheetML). Only values are read: other programs write styles, validations and
names that no library accepts from all of them."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, time, timedelta
from enum import Enum, auto
from typing import Final
from xml.etree.ElementTree import Element
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl

from features.retrieval.extract.child_protocol import ExtractionLimits, too_much_text
from features.retrieval.extract.office import OfficePackage, local_name

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


_COLUMNS: Final = 16_384
"""Of a sheet."""
_CELL = re.compile(r"([A-Za-z]{1,3})[0-9]*")
_ESCAPED = re.compile(r"_x([0-9a-fA-F]{4})_")
"""A character that XML cannot have."""
_WHOLE = re.compile(r"-?[0-9]+")
_MOST_DAYS: Final = 2_958_466
"""The day after 9999-12-31."""
_DAY: Final = 86_400_000
"""Milliseconds."""


def read_sheets(package: OfficePackage, main: str, limits: ExtractionLimits) -> Iterator[str]:
    """Each sheet: its name, then a line for each row that is not empty, cells divided by tabs. Of a
    formula, the value that was stored with it.

    Raises ExtractionFailed, and what the parser raises for damaged files.
    """
    strings = _Strings(limits.text)
    for part in package.targets(main, "sharedStrings"):
        for _ in package.feed(part, strings):
            pass
    workbook = package.parse(main)
    uses_1904 = any(
        element.get("date1904", "0") in ("1", "true")
        for element in workbook.iter()
        if local_name(element.tag) == "workbookPr"
    )
    styles = date_styles(package, main)
    for name, part in _sheets(package, main, workbook):
        rows = _Rows(strings.texts, styles, limits.text, uses_1904=uses_1904)
        yield f"{name}\n"
        for _ in package.feed(part, rows):
            yield from rows.take()
        yield "\n"


def _sheets(package: OfficePackage, main: str, workbook: Element) -> Iterator[tuple[str, str]]:
    """Name and part of each sheet that has cells."""
    parts = {relation: (kind, part) for kind, relation, part in package.relations(main)}
    elements = (each for each in workbook.iter() if local_name(each.tag) == "sheet")
    for number, element in enumerate(elements, 1):
        relation = next((value for key, value in element.items() if local_name(key) == "id"), "")
        usual = package.beside(main, f"worksheets/sheet{number}.xml")
        kind, part = parts.get(relation, ("/worksheet", usual))
        if kind.endswith("/worksheet") and part:
            yield element.get("name", ""), part


class _Texts(ContentHandler):
    """What the texts inside of an element have, without those that only say how to pronounce it."""

    def __init__(self, most: int) -> None:
        """`most`: bytes of a text."""
        super().__init__()
        self._most = most
        self._pieces: list[str] = []
        self._size = 0
        self._is_open = False
        self._phonetic = 0

    def start_text(self) -> None:
        self._is_open = not self._phonetic

    def take_text(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text

    def characters(self, content: str) -> None:
        if not self._is_open:
            return
        self._size += len(content)
        if self._size > self._most:
            raise too_much_text(self._most)
        self._pieces.append(content)

    def startElement(self, name: str, attrs: "AttributesImpl[str]") -> None:  # noqa: N802 - of SAX
        element = local_name(name)
        if element == "rPh":
            self._phonetic += 1
        self.start(element, attrs)

    def endElement(self, name: str) -> None:  # noqa: N802 - of SAX
        element = local_name(name)
        self._is_open = False
        if element == "rPh":
            self._phonetic -= 1
        self.end(element)

    def start(self, element: str, attrs: "AttributesImpl[str]") -> None:
        """An element has begun."""

    def end(self, element: str) -> None:
        """An element has ended."""


class _Strings(_Texts):
    """The strings that cells share."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.texts: list[str] = []

    def start(self, element: str, attrs: "AttributesImpl[str]") -> None:  # noqa: ARG002
        if element == "t":
            self.start_text()

    def end(self, element: str) -> None:
        if element == "si":
            self.texts.append(self.take_text())


class _Rows(_Texts):
    """The rows of a sheet. What they say about their number is ignored."""

    def __init__(self, strings: list[str], styles: Styles, most: int, *, uses_1904: bool) -> None:
        super().__init__(most)
        self._strings = strings
        self._styles = styles
        self._epoch = datetime(1904, 1, 1) if uses_1904 else datetime(1899, 12, 30)  # noqa: DTZ001
        self._lines: list[str] = []
        self._cells: list[str] = []
        self._column = self._following = 0
        self._taken = 0
        self._type = ""
        self._style = ""

    def take(self) -> list[str]:
        """The lines since the last call."""
        lines = self._lines
        self._lines, self._taken = [], 0
        return lines

    def start(self, element: str, attrs: "AttributesImpl[str]") -> None:
        if element == "row":
            self._cells, self._following = [], 0
        elif element == "c":
            self._type, self._style = attrs.get("t", ""), attrs.get("s", "")
            self._column = _column_of(attrs.get("r", ""), self._following)
            self._following = self._column + 1
        elif element in ("v", "t"):
            self.start_text()

    def end(self, element: str) -> None:
        if element == "c":
            if value := self._value(self.take_text()):
                # A short cell may name a long shared string, or a column far away.
                skipped = self._column - len(self._cells)
                self._taken += skipped + len(value)
                self._cells += [""] * skipped
                self._cells.append(value)
                if self._taken > self._most:
                    raise too_much_text(self._most)
        elif element == "row" and (line := "\t".join(self._cells).rstrip()):
            self._lines.append(f"{line}\n")

    def _value(self, text: str) -> str:
        match self._type:
            case "s":
                index = int(text) if _WHOLE.fullmatch(text.strip()) else -1
                return self._strings[index] if 0 <= index < len(self._strings) else ""
            case "b":
                return "TRUE" if text.strip() in ("1", "true") else "FALSE"
            case "" | "n":
                return self._number(text.strip())
        return text

    def _number(self, text: str) -> str:
        try:
            number = float(text)
        except ValueError:
            return text
        if shown := self._styles.get(self._style):
            if not 0 <= number < _MOST_DAYS:
                return text
            return self._date(number) if shown == NumberKind.DATE else _duration(number)
        if _WHOLE.fullmatch(text):
            return text
        return str(int(number)) if number.is_integer() and abs(number) < 1e15 else str(number)

    def _date(self, days: float) -> str:
        """The moment, or only the day or the time."""
        is_time = days < 1
        if self._epoch.year < 1904 and days < 60:
            days += 1  # day 60 is the 29th of February 1900, which was none
        moment = self._epoch + timedelta(milliseconds=round(days * _DAY))
        if is_time:
            return moment.time().isoformat()
        return moment.date().isoformat() if moment.time() == time() else moment.isoformat()


def _duration(days: float) -> str:
    """Hours, minutes and seconds."""
    seconds = round(days * _DAY) // 1000
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _column_of(place: str, following: int) -> int:
    """The index of the column that a cell names; `following`, the next one, if it names none, or
    one before that."""
    found = _CELL.match(place)
    if found is None:
        return following
    column = 0
    for letter in found[1].upper():
        column = 26 * column + ord(letter) - 64
    return max(following, min(column, _COLUMNS) - 1)
