"""The encoding of text that is not UTF-8."""

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

from features.retrieval.extract.legacy_text import legacy_encoding
from models.files.kinds import CONTROLS, wide_encoding

_BLOCK = 64 * 1024
_SAMPLE = 4 * 1024
"""Bytes that show the encoding."""
_BEFORE = 60
_NOT_ASCII = re.compile(rb"[\x80-\xff\x1b]")
_FEW = 10
"""Characters of UTF-8 for each one that is damaged."""
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
    if (wide := wide_encoding(head)) is not None:
        return wide
    if is_html and (declared := _DECLARED.search(head[:4096])) is not None:
        name = declared[1].decode().lower()
        if _TEXT_ENCODINGS.fullmatch(name):
            return name
    sample = _sample(file)
    file.seek(0)
    if sample is None:
        return None
    return "utf-8-sig" if _is_damaged_utf8(sample) else legacy_encoding(sample)


def decode(file: BinaryIO, encoding: str) -> Iterator[str]:
    """The file's text, with U+FFFD for what is not in this encoding."""
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    while block := file.read(_BLOCK):
        yield decoder.decode(block)
    yield decoder.decode(b"", True)


def _is_damaged_utf8(sample: bytes) -> bool:
    """Whether nearly all that is not ASCII is UTF-8: a line was cut, or two files were joined."""
    high = [letter for letter in sample.decode(errors="replace") if not letter.isascii()]
    return len(high) > _FEW * high.count("\ufffd")


def _sample(file: BinaryIO) -> bytes | None:
    """Some of the lines that are not all ASCII; None if the file has bytes that no text has."""
    sample, line = bytearray(), b""
    while block := file.read(_BLOCK):
        if CONTROLS.search(block):
            return None
        if len(sample) < _SAMPLE:
            *lines, line = (line + block).split(b"\n")
            if len(line) > _BLOCK:
                lines, line = [*lines, line], b""
            for each in lines:
                sample += _shown(each)
    return bytes((sample + _shown(line))[:_SAMPLE])


def _shown(line: bytes) -> bytes:
    """Where a line is not ASCII any more, with some of what is before; empty if it is all ASCII."""
    first = _NOT_ASCII.search(line)
    if first is None:
        return b""
    start = max(0, first.start() - _BEFORE)
    return line[start : start + _SAMPLE] + b"\n"
