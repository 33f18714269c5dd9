"""What the newer kinds of Office share: a ZIP file of XML parts with relations between them
(ISO/IEC 29500-2)."""

from collections.abc import Iterator
from posixpath import join, normpath
from typing import BinaryIO
from xml.etree.ElementTree import Element
from xml.sax.handler import ContentHandler
from zipfile import ZipFile

from defusedxml.ElementTree import fromstring
from defusedxml.sax import make_parser

from worker.retrieval.extract.failures import DAMAGED, TYPE, ExtractionFailed
from worker.retrieval.extract.limits import ExtractionLimits, shown

_MOST_PARTS = 20_000
_PICTURES = ("/media/", "/embeddings/", "/fonts/")
"""Folders of parts that are not read."""
_SMALL_PART = 4 * 1024 * 1024
"""Bytes of a part that is read at once."""
_BLOCK = 64 * 1024
_DOCUMENT = "/officeDocument"
_LEFT_OUT = frozenset(("Fallback", "moveFrom", "pPr", "rPr"))
"""Elements without text that a reader sees: copies for old programs, what was moved, formats."""
_SIGNS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_RELATION = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
_TYPE_OF_PART = "{http://schemas.openxmlformats.org/package/2006/content-types}Override"


class Package:
    """The parts of one file."""

    def __init__(self, file: BinaryIO, limits: ExtractionLimits) -> None:
        """Raises ExtractionFailed if it would be too large, and BadZipFile."""
        self.archive = ZipFile(file)
        entries = self.archive.infolist()
        unpacked = sum(
            entry.file_size
            for entry in entries
            if not any(folder in f"/{entry.filename}" for folder in _PICTURES)
        )
        # An entry never unpacks to more than it declares: reading stops there.
        if unpacked > limits.unpacked or len(entries) > _MOST_PARTS:
            raise ExtractionFailed(
                "invalid_file",
                "The file could not be parsed because it is too large: "
                f"it unpacks to more than {shown(limits.unpacked)}, or has too many parts.",
                f"{unpacked} bytes in {len(entries)} parts",
            )
        self._names = frozenset(entry.filename for entry in entries)

    def is_office(self) -> bool:
        """Whether it is a file of Office, or a ZIP file of another kind."""
        return "[Content_Types].xml" in self._names

    def main_part(self) -> tuple[str, str]:
        """The name of the document itself and its content type; empty strings if it has none."""
        names = [target for kind, _, target in self.relations("") if kind.endswith(_DOCUMENT)]
        types = {
            each.get("PartName", "").lstrip("/"): each.get("ContentType", "")
            for each in self.parse("[Content_Types].xml").iter(_TYPE_OF_PART)
        }
        return next(((name, types[name]) for name in names if name in types), ("", ""))

    def relations(self, part: str) -> list[tuple[str, str, str]]:
        """Kind, id and target of each relation of a part to a part that the file has."""
        folder, _, name = part.rpartition("/")
        source = join(folder, "_rels", f"{name}.rels")
        if source not in self._names:
            return []
        relations = []
        for relation in self.parse(source).iter(_RELATION):
            target = normpath(join("/", folder, relation.get("Target", ""))).lstrip("/")
            if target in self._names:
                relations.append((relation.get("Type", ""), relation.get("Id", ""), target))
        return relations

    def targets(self, part: str, kind: str) -> list[str]:
        """The parts to which a part has relations of one kind."""
        return [target for each, _, target in self.relations(part) if each.endswith(f"/{kind}")]

    def parse(self, part: str) -> Element:
        """A small part. Raises ExtractionFailed if it is large, and KeyError if there is none."""
        if self.archive.getinfo(part).file_size > _SMALL_PART:
            raise ExtractionFailed("invalid_file", DAMAGED, "a list of parts is too large")
        root: Element = fromstring(self.archive.read(part), forbid_dtd=True)
        return root

    def text(self, part: str) -> Iterator[str]:
        """The text of a part of any size. No tree is built."""
        parser, content = make_parser(), _Content()
        parser.forbid_dtd = True
        parser.setContentHandler(content)
        with self.archive.open(part) as stream:
            while block := stream.read(_BLOCK):
                parser.feed(block)
                yield content.take()
        parser.close()


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
        element = name.rpartition(":")[2]
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
        match name.rpartition(":")[2]:
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
    package = Package(file, limits)
    name, content_type = package.main_part() if package.is_office() else ("", "")
    kind = content_type.lower()
    if "binary" not in kind:
        if "word" in kind:
            return _read_document(package, name)
        if "presentation" in kind or "powerpoint" in kind:
            return _read_slides(package, name)
        if "sheet" in kind:
            from worker.retrieval.extract.readers.sheets import read_sheets

            return read_sheets(file)
    raise ExtractionFailed("unsupported_file", TYPE)


def _read_document(package: Package, main: str) -> Iterator[str]:
    """The body, then the notes. Headers and footers, which each page repeats, are left out."""
    yield from package.text(main)
    for kind in ("footnotes", "endnotes"):
        for part in package.targets(main, kind):
            yield from package.text(part)


def _read_slides(package: Package, main: str) -> Iterator[str]:
    """The slides in their order, each with the speaker's notes."""
    slides = {
        relation: part
        for kind, relation, part in package.relations(main)
        if kind.endswith("/slide")
    }
    for element in package.parse(main).iter():
        if not element.tag.endswith("}sldId"):
            continue
        relation = next((value for key, value in element.items() if key.endswith("}id")), "")
        if (slide := slides.get(relation)) is None:
            continue
        yield from package.text(slide)
        for notes in package.targets(slide, "notesSlide"):
            yield from package.text(notes)
        yield "\n"
