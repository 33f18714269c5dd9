"""What the bytes of a file are, whatever its name claims."""

import codecs
import mimetypes
from pathlib import PurePosixPath

IMAGES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
"""The kinds of images that models take."""
TEXT = "text/plain"
"""UTF-8 without U+0000."""
PDF = "application/pdf"

UNKNOWN = "application/octet-stream"

_HEAD = 1024
"""First bytes that are kept."""
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


class Examination:
    """Examines the bytes of a file as they come."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes until now."""
        self._head = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_text = True

    def feed(self, chunk: bytes) -> None:
        """The next bytes."""
        self.size += len(chunk)
        if len(self._head) < _HEAD:
            self._head += chunk[: _HEAD - len(self._head)]
        if self._is_text:
            self._is_text = b"\0" not in chunk and self._decodes(chunk)

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

    def _decodes(self, chunk: bytes, *, final: bool = False) -> bool:
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError:
            return False
        return True
