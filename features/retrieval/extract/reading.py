"""Chooses the reader for a file, by its bytes, then by its name; and the readers for PDF, JSON and
plain text. A library is imported when a file of its kind is read."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from json import loads
from typing import BinaryIO

from features.retrieval.extract.child_protocol import (
    DAMAGED,
    EMPTY,
    TYPE,
    ExtractionFailed,
    ExtractionLimits,
)
from features.retrieval.extract.encodings import decode, find_encoding
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
        from features.retrieval.extract.office import read_office

        return read_office(file, limits)
    if head.startswith(_COMPOUND):
        raise ExtractionFailed(
            "unsupported_file",
            "The file type is not supported: it is an encrypted Office file, or one of Office 2003 "
            "and before.",
        )
    if head.lstrip().startswith(_PDF) or (_PDF in head and ending == ".pdf"):
        return _read_pdf(file)
    return _read_plain(file, head, ending)


def _read_plain(file: BinaryIO, head: bytes, ending: str) -> Iterator[str]:
    """A file without a structure of bytes. Raises ExtractionFailed if it is no text."""
    is_html = ending in _HTML_ENDINGS or head.lstrip(_SPACE).lower().startswith(_HTML_STARTS)
    encoding = "utf-8-sig" if _is_utf8(file) else find_encoding(file, is_html=is_html)
    if encoding is None or head.startswith(_RICH_TEXT):
        raise ExtractionFailed("unsupported_file", TYPE)
    texts = decode(file, encoding)
    if is_html:
        from features.retrieval.extract.html import read_html

        return read_html(texts)
    if ending in _JSON_ENDINGS:
        return read_json(texts)
    return texts


def _is_utf8(file: BinaryIO) -> bool:
    examination = Examination()
    while block := file.read(_BLOCK):
        examination.feed(block)
    file.seek(0)
    return examination.is_text()


def _read_pdf(file: BinaryIO) -> Iterator[str]:
    """The text of each page. A page that cannot be read is left out, unless it is so with all.

    Raises ExtractionFailed if the file has a password, and what the library raises.
    """
    from pypdf import PasswordType, PdfReader

    reader = PdfReader(file)
    if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
        raise ExtractionFailed(
            "invalid_file", "The file could not be parsed because it is encrypted with a password."
        )
    failure: Exception | None = None
    has_pages = False
    for page in reader.pages:
        try:
            text = page.extract_text()
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - what the library raises for a damaged page
            failure = error
            continue
        has_pages = True
        yield text + "\n\n"
    if failure is not None and not has_pages:
        raise ExtractionFailed("invalid_file", DAMAGED, f"{type(failure).__name__}: {failure}")


_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL
)
_LONGEST = len(r"\ud83d\ude00")


def read_json(texts: Iterable[str]) -> Iterator[str]:
    r"""The same text, but with its characters: `é` for `\u00e9`. It is not parsed, so that it may
    be nested, or damaged, in any way."""
    rest = ""
    for text in texts:
        decoded, rest = _decode(rest + text)
        yield decoded
    yield _ESCAPE.sub(_character, rest)


def _decode(text: str) -> tuple[str, str]:
    """The decoded text, and the end that may begin with a part of an escape."""
    safe = max(0, len(text) - _LONGEST)
    parts = []
    end = 0
    for match in _ESCAPE.finditer(text):
        if match.start() >= safe:
            break
        parts += [text[end : match.start()], _character(match)]
        end = match.end()
    cut = max(safe, end)
    return "".join([*parts, text[end:cut]]), text[cut:]


def _character(match: re.Match[str]) -> str:
    return _decoded(match[0])


@lru_cache(4096)
def _decoded(escape: str) -> str:
    if len(escape) == 2:
        return escape
    character: str = loads(f'"{escape}"')
    # Half of a pair is no character, and neither are the controls of Latin-1.
    return character if character.isprintable() and not character.isascii() else escape
