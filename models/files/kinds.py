"""What the bytes of a file are, whatever its name claims."""

import codecs
import mimetypes
import re
import unicodedata
from pathlib import PurePosixPath

IMAGES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
"""The kinds of images that models take."""
TEXT = "text/plain"
"""UTF-8 without U+0000."""
PDF = "application/pdf"

UNKNOWN = "application/octet-stream"

_HEAD = 1024
"""First bytes that are kept."""
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""First bytes -> encoding; that of UTF-32 begins with that of UTF-16."""
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Control characters that no text has; ESC begins the character sets of ISO 2022."""
_SPACES = frozenset(" \n\r\t\u3000\u3001\u3002")
_MOST_BLOCKS = 4
"""Rows of 256 characters that a text of one alphabet has beside ASCII. Other bytes that are taken
for UTF-16 have many."""
_NO_TEXT = frozenset(("Cc", "Cn", "Co", "Cs"))
"""Categories of characters that text has not, but for line ends and tabs."""
_CLAIMS = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".pdf": PDF,
    ".json": TEXT,
    ".jsonl": TEXT,
    ".md": TEXT,
    ".txt": TEXT,
}
"""Ending of a name -> what the bytes must be."""


def claimed_kind(filename: str) -> str | None:
    """What the name says that the file is; None: nothing that could be checked."""
    return _CLAIMS.get(PurePosixPath(filename).suffix.lower())


def sent_type(filename: str, kind: str | None) -> str:
    """The media type with which a model gets a file. `kind`: what its bytes were found to be. Of a
    text, and of a kind that is not known here, it is what the name says, unless the bytes would
    show that kind."""
    if kind is not None and kind != TEXT:
        return kind
    by_name = mimetypes.guess_type(filename)[0]
    if by_name is None or by_name in IMAGES or by_name == PDF:
        return kind or UNKNOWN
    if kind == TEXT and not by_name.startswith("text/") and by_name != "application/json":
        return TEXT
    return by_name


def wide_encoding(head: bytes) -> str | None:
    """The encoding of a text in UTF-16 or UTF-32, by its first bytes; None if it is in neither."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    if b"\0" not in head and not CONTROLS.search(head):
        return None
    plain = {name: _count_plain(head[:_HEAD], name) for name in ("utf-16-le", "utf-16-be")}
    best = max(plain, key=lambda name: plain[name])
    return best if plain[best] else None


def _count_plain(head: bytes, name: str) -> int:
    """How many characters of ASCII, spaces and line ends a text has in this encoding; 0 if it is no
    text."""
    try:
        text = codecs.getincrementaldecoder(name)().decode(head)
    except UnicodeDecodeError:
        return 0
    if any(unicodedata.category(each) in _NO_TEXT and each not in _SPACES for each in text):
        return 0
    others = {ord(each) >> 8 for each in text if not (each.isascii() or each in _SPACES)}
    if len(others) > _MOST_BLOCKS:
        return 0
    return sum(each.isascii() or each in _SPACES for each in text)


class Examination:
    """Examines the bytes of a file as they come."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes until now."""
        self._head = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_text = True
        self._has_controls = False

    def feed(self, chunk: bytes) -> None:
        """The next bytes."""
        self.size += len(chunk)
        if len(self._head) < _HEAD:
            self._head += chunk[: _HEAD - len(self._head)]
        if self._is_text:
            self._is_text = b"\0" not in chunk and self._decodes(chunk)
        if not (self._is_text or self._has_controls):
            self._has_controls = CONTROLS.search(chunk) is not None

    def kind(self) -> str | None:
        """The media type of the whole file; None: it is of no kind that is known here."""
        head = self._head
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return "image/png"
        if head.startswith(b"\xff\xd8\xff"):
            return "image/jpeg"
        if head.startswith((b"GIF87a", b"GIF89a")):
            return "image/gif"
        if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
            return "image/webp"
        # A PDF may begin with other bytes (ISO 32000-1, annex H).
        if b"%PDF-" in head:
            return PDF
        return TEXT if self.is_text() else None

    def is_text(self) -> bool:
        """Whether the whole file is text, whatever it begins with."""
        return self.size > 0 and self._is_text and self._decodes(b"", final=True)

    def may_be_text(self) -> bool:
        """Whether the whole file may be text in UTF-16, UTF-32 or an older encoding, if it is not
        UTF-8."""
        return self.kind() is None and (
            not self._has_controls or wide_encoding(self._head) is not None
        )

    def _decodes(self, chunk: bytes, *, final: bool = False) -> bool:
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError:
            return False
        return True
