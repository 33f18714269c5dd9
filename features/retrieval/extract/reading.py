"""Chooses the reader for a file: by its bytes, then by its name."""

from collections.abc import Iterator
from typing import BinaryIO

from features.retrieval.extract.encodings import decode, find_encoding
from features.retrieval.extract.extraction_failed import EMPTY, TYPE, ExtractionFailed
from features.retrieval.extract.limits import ExtractionLimits
from models.files.kinds import Examination

_BLOCK = 64 * 1024
_PACKAGE = b"PK\x03\x04"
"""A ZIP file; the newer kinds of Office are such files."""
_COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""The older kinds of Office, and newer ones that are encrypted."""
_PDF = b"%PDF-"
_RICH_TEXT = b"{\\rtf"
_SPACE = b"\xef\xbb\xbf \t\r\n"
"""What may come before HTML begins: a mark of UTF-8, and space."""
_HTML_STARTS = (b"<!doctype html", b"<html")
_HTML_ENDINGS = frozenset((".html", ".htm", ".xhtml"))
_JSON_ENDINGS = frozenset((".json", ".jsonl", ".ndjson", ".ipynb"))


def read_text(file: BinaryIO, ending: str, limits: ExtractionLimits) -> Iterator[str]:
    """The text of a file, in pieces of any length. `ending` of its name, in lower case.

    Raises ExtractionFailed, and what the libraries raise for damaged files.
    """
    head = file.read(1024)
    file.seek(0)
    if not head:
        raise ExtractionFailed("invalid_file", EMPTY)
    if head.startswith(_PACKAGE):
        from features.retrieval.extract.readers.office import read_office

        return read_office(file, limits)
    if head.startswith(_COMPOUND):
        raise ExtractionFailed(
            "unsupported_file",
            "The file type is not supported: it is an encrypted Office file, or one of Office 2003 "
            "and before.",
        )
    if head.lstrip().startswith(_PDF) or (_PDF in head and ending == ".pdf"):
        from features.retrieval.extract.readers.pdf import read_pdf

        return read_pdf(file)
    return _read_plain(file, head, ending)


def _read_plain(file: BinaryIO, head: bytes, ending: str) -> Iterator[str]:
    """A file without a structure of bytes. Raises ExtractionFailed if it is no text."""
    is_html = ending in _HTML_ENDINGS or head.lstrip(_SPACE).lower().startswith(_HTML_STARTS)
    encoding = "utf-8-sig" if _is_utf8(file) else find_encoding(file, is_html=is_html)
    if encoding is None or head.startswith(_RICH_TEXT):
        raise ExtractionFailed("unsupported_file", TYPE)
    texts = decode(file, encoding)
    if is_html:
        from features.retrieval.extract.readers.html import read_html

        return read_html(texts)
    if ending in _JSON_ENDINGS:
        from features.retrieval.extract.readers.json import read_json

        return read_json(texts)
    return texts


def _is_utf8(file: BinaryIO) -> bool:
    examination = Examination()
    while block := file.read(_BLOCK):
        examination.feed(block)
    file.seek(0)
    return examination.is_text()
