"""Chooses the reader for a file, by its bytes, then by its name; and the readers for PDF, HTML (the
text that a browser shows, and the title), JSON and plain text. A library is imported when a file of
its kind is read."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from html import unescape
from html.parser import HTMLParser
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
        from features.retrieval.extract.reading import read_html

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


_HIDDEN = frozenset(("script", "style", "template", "noscript", "svg", "iframe"))
_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "details"),
        *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2"),
        *("h3", "h4", "h5", "h6", "head", "header", "hr", "li", "main", "nav", "ol", "option"),
        *("p", "pre", "section", "select", "summary", "table", "title", "tr", "ul"),
    )
)
"""Elements that begin and end a line."""
_CELLS = frozenset(("td", "th"))
_OPEN = re.compile(r"<[a-zA-Z/!?]")
_SPACES = re.compile(r"\s+")


def read_html(texts: Iterable[str]) -> Iterator[str]:
    """The visible text, a block a line. No tree is built: elements may be nested in any way."""
    page = _PageParser()
    waiting: list[str] = []
    size = 0
    for text in texts:
        waiting.append(text)
        size += len(text)
        # The parser begins again with what is open. It gets as much as that at least: so the work
        # grows with the size of the page, not with its square.
        if size >= len(page.rawdata):
            page.feed("".join(waiting))
            waiting, size = [], 0
            yield page.take()
    page.feed("".join(waiting))
    page.end()
    yield page.take()


class _PageParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._hidden: str | None = None
        self._hidden_depth = 0
        self._preformatted = 0
        self._end = "\n"
        """The last character of the text until now."""

    def take(self) -> str:
        """The text since the last call."""
        text = "".join(self._parts)
        self._parts.clear()
        return text

    def end(self) -> None:
        """The end of the page. A tag or comment that is still open is not shown, as in a browser;
        the parser's own end would look for its end from each `<` on."""
        rest, self.rawdata = self.rawdata, ""
        if self.cdata_elem is None and not _OPEN.match(rest):
            self.handle_data(unescape(rest))

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        if self._hidden is not None:
            self._hidden_depth += tag == self._hidden
        elif tag in _HIDDEN:
            self._hidden, self._hidden_depth = tag, 1
        elif tag in _BLOCKS:
            self._break_line()
            self._preformatted += tag == "pre"
        elif tag in _CELLS and self._end != "\n":
            self._append("\t")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden is not None:
            self._hidden_depth -= tag == self._hidden
            if not self._hidden_depth:
                self._hidden = None
        elif tag in _BLOCKS:
            self._break_line()
            if tag == "pre" and self._preformatted:
                self._preformatted -= 1

    def handle_data(self, data: str) -> None:
        if self._hidden is not None:
            return
        text = data if self._preformatted else _SPACES.sub(" ", data)
        if self._end.isspace() and not self._preformatted:
            text = text.lstrip()
        if text:
            self._append(text)

    def _break_line(self) -> None:
        if self._end != "\n":
            self._append("\n")

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._end = text[-1]
