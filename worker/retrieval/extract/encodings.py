"""The encoding of text that is not UTF-8."""

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

from worker.retrieval.extract.failures import TYPE, ExtractionFailed

_BLOCK = 64 * 1024
_SAMPLE = 64 * 1024
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""First bytes -> encoding; that of UTF-32 begins with that of UTF-16."""
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Control characters that no text has; ESC begins the character sets of ISO 2022."""
_NOT_ASCII = re.compile(rb"[\x80-\xff\x1b]")
_DECLARED = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?([a-zA-Z0-9_-]{3,20})""")
_TEXT_ENCODINGS = re.compile(
    r"(iso-?8859-\d+|(windows-|cp)125\d|koi8-[ru]|gb2312|gbk|gb18030|big5|shift_jis|euc-jp"
    r"|iso-2022-jp|euc-kr|macintosh|us-ascii)"
)
"""Encodings that a page may declare. Python knows others, which unpack."""


def find_encoding(file: BinaryIO, *, is_html: bool) -> str | None:
    """The encoding of a file that is not UTF-8; None if it is no text. Reads from the beginning,
    and leaves the file there."""
    head = file.read(_BLOCK)
    file.seek(0)
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    if (wide := _wide_encoding(head)) is not None:
        return wide
    if is_html and (declared := _DECLARED.search(head[:4096])) is not None:
        name = declared[1].decode().lower()
        if _TEXT_ENCODINGS.fullmatch(name):
            return name
    sample = _sample(file)
    file.seek(0)
    if sample is None:
        return None
    from charset_normalizer import from_bytes

    best = from_bytes(sample).best()
    return best.encoding if best is not None else None


def decode(file: BinaryIO, encoding: str) -> Iterator[str]:
    """The file's text. Raises ExtractionFailed where it is not in this encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        while block := file.read(_BLOCK):
            yield decoder.decode(block)
        yield decoder.decode(b"", True)
    except UnicodeError as error:
        raise ExtractionFailed("unsupported_file", TYPE, f"{encoding}: {error}") from None


def _wide_encoding(head: bytes) -> str | None:
    """UTF-16 without a mark: every second byte of mostly Latin text is zero."""
    even, odd = head[::2], head[1::2]
    for name, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if zeros.count(0) > 0.7 * len(zeros) and b"\0" not in others and len(others) > 1:
            return name
    return None


def _sample(file: BinaryIO) -> bytes | None:
    """Some lines from where the file is no longer ASCII; None if it has bytes that no text has."""
    sample = bytearray()
    while block := file.read(_BLOCK):
        if _BINARY.search(block):
            return None
        if sample:
            sample += block[: max(0, _SAMPLE - len(sample))]
        elif (first := _NOT_ASCII.search(block)) is not None:
            sample += block[block.rfind(b"\n", 0, first.start()) + 1 :]
    if len(sample) >= _SAMPLE:
        del sample[sample.rfind(b"\n") + 1 or len(sample) :]
    return bytes(sample)
