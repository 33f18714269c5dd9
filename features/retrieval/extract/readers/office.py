"""The newer kinds of Office: documents, presentations, workbooks."""

from collections.abc import Iterator
from typing import BinaryIO
from xml.sax.handler import ContentHandler

from features.retrieval.extract.extraction_failed import TYPE, ExtractionFailed
from features.retrieval.extract.limits import ExtractionLimits
from features.retrieval.extract.readers.package import OfficePackage, local_name

_LEFT_OUT = frozenset(("Fallback", "moveFrom", "pPr", "rPr"))
"""Elements without text that a reader sees: copies for old programs, what was moved, formats."""
_SIGNS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


class _Content(ContentHandler):
    """The text of WordprocessingML and DrawingML, whose elements have the same local names: a
    paragraph a line, cells divided by tabs."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._is_text = False
        self._cells = 0
        """Table cells that are open."""
        self._left_out = 0
        """Elements that are open, from the outermost one on that has no text to show."""

    def take(self) -> str:
        """The text since the last call."""
        text = "".join(self._parts)
        self._parts.clear()
        return text

    def startElement(self, name: str, attrs: object) -> None:  # noqa: N802, ARG002 - of SAX
        element = local_name(name)
        if self._left_out or element in _LEFT_OUT:
            self._left_out += 1
        elif element == "t":
            self._is_text = True
        elif element == "tc":
            self._cells += 1
        elif element in _SIGNS:
            self._parts.append(_SIGNS[element])

    def endElement(self, name: str) -> None:  # noqa: N802 - of SAX
        if self._left_out:
            self._left_out -= 1
            return
        match local_name(name):
            case "t":
                self._is_text = False
            case "p":
                self._parts.append(" " if self._cells else "\n")
            case "tc":
                self._cells -= 1
                self._parts.append("\t")
            case "tr":
                self._parts.append("\n")

    def characters(self, content: str) -> None:
        if self._is_text and not self._left_out:
            self._parts.append(content)


def read_office(file: BinaryIO, limits: ExtractionLimits) -> Iterator[str]:
    """The text of a document, a presentation or a workbook.

    Raises ExtractionFailed, and what libraries raise for damaged files.
    """
    package = OfficePackage(file, limits)
    name, kind = package.main_part()
    if "binary" not in kind:
        if "word" in kind:
            return _read_document(package, name)
        if "presentation" in kind or "powerpoint" in kind:
            return _read_slides(package, name)
        if "sheet" in kind:
            from features.retrieval.extract.readers.sheets import read_sheets

            return read_sheets(package, name, limits)
    raise ExtractionFailed("unsupported_file", TYPE)


def _text(package: OfficePackage, part: str) -> Iterator[str]:
    content = _Content()
    for _ in package.feed(part, content):
        yield content.take()


def _read_document(package: OfficePackage, main: str) -> Iterator[str]:
    """The body, then the notes. Headers and footers, which each page repeats, are left out."""
    yield from _text(package, main)
    for kind in ("footnotes", "endnotes"):
        for part in package.targets(main, kind):
            yield from _text(package, part)


def _read_slides(package: OfficePackage, main: str) -> Iterator[str]:
    """The slides in their order, each with the speaker's notes."""
    slides = {
        relation: part
        for kind, relation, part in package.relations(main)
        if kind.endswith("/slide")
    }
    shown: set[str] = set()
    for element in package.parse(main).iter():
        if local_name(element.tag) != "sldId":
            continue
        # its own id has no namespace
        relation = next((value for key, value in element.items() if key.endswith("}id")), "")
        if (slide := slides.get(relation)) is None or slide in shown:
            continue
        shown.add(slide)
        yield from _text(package, slide)
        for notes in package.targets(slide, "notesSlide"):
            yield from _text(package, notes)
        yield "\n"
