"""The newer kinds of Office: documents and presentations; workbooks are read by sheets.py.

A file is a ZIP file of XML parts with relations between them (ISO/IEC 29500-2). Names of parts are
compared as the standard says, without case. What other programs leave out or write in their own way
is read too: names with backslashes, a list of types or of relations that is missing.
"""

from collections.abc import Iterator
from posixpath import join, normpath
from typing import BinaryIO
from urllib.parse import unquote
from xml.etree.ElementTree import Element, ParseError
from xml.sax.handler import ContentHandler
from zipfile import ZipFile

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring
from defusedxml.sax import make_parser

from features.retrieval.extract.child_protocol import (
    DAMAGED,
    TYPE,
    ExtractionFailed,
    ExtractionLimits,
    shown,
)

_MOST_PARTS = 20_000
_PICTURES = ("/media/", "/embeddings/", "/fonts/")
"""Folders of parts that are not read."""
_SMALL_PART = 4 * 1024 * 1024
"""Bytes of a part that is read at once."""
_LARGE_PART = 16 * 1024 * 1024
"""Bytes of the styles of a large workbook, at most."""
_BLOCK = 1024 * 1024
"""Bytes that the parser gets at once. Before expat 2.6 it begins again with an element or comment
that is still open: with small blocks a long one would take the square of its size."""
_TYPES = "[content_types].xml"
_DOCUMENT = "/officeDocument"
_MAIN_PARTS = {
    "word/document.xml": "word",
    "ppt/presentation.xml": "presentation",
    "xl/workbook.xml": "sheet",
}
"""The main part by its usual name -> a part of its content type."""
_USUAL = {
    "sharedStrings": "sharedstrings.xml",
    "styles": "styles.xml",
    "footnotes": "footnotes.xml",
    "endnotes": "endnotes.xml",
}
"""Kind of a relation -> the usual name of its target, beside the main part."""


def local_name(name: str) -> str:
    """The name of an element or attribute without its namespace, or its prefix."""
    return name.rpartition("}")[2].rpartition(":")[2]


class OfficePackage:
    """The parts of one file."""

    def __init__(self, file: BinaryIO, limits: ExtractionLimits) -> None:
        """Raises ExtractionFailed if it would be too large, and BadZipFile."""
        self._archive = ZipFile(file)
        entries = self._archive.infolist()
        self._parts = {_part_name(entry.filename): entry for entry in entries}
        self._relations: dict[str, list[tuple[str, str, str]]] = {}
        """What `relations` has found: a part is asked for them many times."""
        self._fed: set[str] = set()
        unpacked = sum(
            entry.file_size
            for entry in entries
            if not any(folder in f"/{_part_name(entry.filename)}" for folder in _PICTURES)
        )
        # An entry never unpacks to more than it declares: reading stops there.
        if unpacked > limits.unpacked or len(entries) > _MOST_PARTS:
            raise ExtractionFailed(
                "invalid_file",
                "The file could not be parsed because it is too large: "
                f"it unpacks to more than {shown(limits.unpacked)}, or has too many parts.",
                f"{unpacked} bytes in {len(entries)} parts",
            )

    def main_part(self) -> tuple[str, str]:
        """The name of the document itself and its content type, in lower case; empty strings if it
        is no file of Office."""
        types: dict[str, str] = {}
        if _TYPES in self._parts:
            for element in self.parse(_TYPES).iter():
                if local_name(element.tag) == "Override":
                    name = _part_name(element.get("PartName", ""))
                    types[name] = element.get("ContentType", "").lower()
        related = [target for kind, _, target in self.relations("") if kind.endswith(_DOCUMENT)]
        for name in (*related, *_MAIN_PARTS):
            if name in self._parts and (kind := types.get(name) or _MAIN_PARTS.get(name)):
                return name, kind
        return "", ""

    def relations(self, part: str) -> list[tuple[str, str, str]]:
        """Kind, id and target of each relation of a part to a part that the file has."""
        if part not in self._relations:
            self._relations[part] = self._read_relations(part)
        return self._relations[part]

    def _read_relations(self, part: str) -> list[tuple[str, str, str]]:
        folder, _, name = part.rpartition("/")
        source = join(folder, "_rels", f"{name}.rels")
        if source not in self._parts:
            return []
        relations = []
        for relation in self.parse(source).iter():
            if local_name(relation.tag) != "Relationship":
                continue
            given = relation.get("Target", "").replace("\\", "/")
            for target in (given, unquote(given)):
                found = _part_name(normpath(join("/", folder, target)))
                if found in self._parts:
                    relations.append((relation.get("Type", ""), relation.get("Id", ""), found))
                    break
        return relations

    def targets(self, part: str, kind: str) -> list[str]:
        """The parts to which a part has relations of one kind; without such relations the one that
        has the usual name."""
        related = [target for each, _, target in self.relations(part) if each.endswith(f"/{kind}")]
        if not related and (usual := self.beside(part, _USUAL.get(kind, ""))):
            return [usual]
        return related

    def beside(self, part: str, name: str) -> str:
        """The part with this name in the folder of another one; empty if there is none."""
        found = _part_name(join(part.rpartition("/")[0], name))
        return found if found in self._parts else ""

    def parse(self, part: str, most: int = _SMALL_PART) -> Element:
        """A small part. Raises ExtractionFailed if it has more than `most` bytes, and KeyError if
        there is none."""
        if self._parts[part].file_size > most:
            raise ExtractionFailed("invalid_file", DAMAGED, "a list of parts is too large")
        root: Element = fromstring(self._archive.read(self._parts[part]), forbid_dtd=True)
        return root

    def parse_or_none(self, part: str) -> Element | None:
        """A part that the text can do without; None if it cannot be read."""
        try:
            return self.parse(part, _LARGE_PART)
        except (ExtractionFailed, ParseError, DefusedXmlException):
            return None

    def feed(self, part: str, content: ContentHandler) -> Iterator[None]:
        """Gives a part of any size to a handler, and stops after each block. No tree is built.

        Each part is read once: thousands of sheets or slides may name the same one.
        """
        if part in self._fed:
            return
        self._fed.add(part)
        parser = make_parser()
        parser.forbid_dtd = True
        parser.setContentHandler(content)
        with self._archive.open(self._parts[part]) as stream:
            while block := stream.read(_BLOCK):
                parser.feed(block)
                yield
        parser.close()
        yield


def _part_name(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./").lstrip("/").lower()


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
            from features.retrieval.extract.sheets import read_sheets

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
