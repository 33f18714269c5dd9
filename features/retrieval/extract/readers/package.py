"""The parts of a file of the newer kinds of Office: a ZIP file of XML parts with relations between
them (ISO/IEC 29500-2).

Names of parts are compared as the standard says, without case. What other programs leave out or
write in their own way is read too: names with backslashes, a list of types or of relations that is
missing.
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

from features.retrieval.extract.extraction_failed import DAMAGED, ExtractionFailed
from features.retrieval.extract.limits import ExtractionLimits, shown

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
