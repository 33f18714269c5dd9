"""The files of the campaign: all kinds that a vector store reads, and some that attack it."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePath

from features.retrieval.chunking import Chunker, ChunkingStrategy
from features.retrieval.extract.child import text_pieces
from features.retrieval.extract.child_protocol import ExtractionLimits
from features.retrieval.extract.reading import read_text
from tests.support.files_to_read import cell, docx, pages_with_text, paragraph, pptx, xlsx
from tests.support.hostile_files import HOSTILE

STRATEGY = ChunkingStrategy(100, 20)
_HOSTILE = (
    "50 documents, one inside the other",
    "entities in entities (billion laughs)",
    "an entity that is a file",
    "an entity that is a URL",
    "a page tree that contains itself",
    "200 000 arrays, one inside the other",
    "encrypted with a password",
    "encrypted without one",
    "2 MiB of random bytes",
    "a drawing that contains itself",
    "declares 1 048 576 x 16 384 cells",
    "U+0000 between the letters",
    "a program named .txt",
    "random bytes named .md",
    "10 MB of space",
)
"""Those that need little time. tests/integration/retrieval/test_hostile_files.py tries them all."""
_HOSTILE_SHARE = 0.1
_WORDS = ("baker", "kneads", "dough", "while", "spring", "tides", "rise", "and", "moon", "sea")


@dataclass(frozen=True, slots=True)
class MixedFile:
    """A file, and what must become of it."""

    kind: str
    name: str
    content: bytes
    failure: str
    """`code: message`, or its beginning; empty: it is read"""
    lines: tuple[str, ...] = ()
    """each is in its chunks"""

    def chunks(self) -> list[str]:
        """The texts of its chunks, made here; none for a file that fails."""
        if self.failure:
            return []
        chunker = Chunker(STRATEGY)
        ending = PurePath(self.name).suffix
        texts = read_text(BytesIO(self.content), ending, ExtractionLimits())
        chunks = [
            chunk
            for piece in text_pieces(texts, ExtractionLimits().text)
            for chunk in chunker.feed(piece.decode())
        ]
        return [chunk.text.replace("\0", " ") for chunk in [*chunks, *chunker.finish()]]


def mixed_files(count: int, numbers: random.Random) -> list[MixedFile]:
    """So many files, in any order."""
    hostile = round(count * _HOSTILE_SHARE)
    kinds = list(_KINDS)
    files = [_readable(kinds[at % len(kinds)], at, numbers) for at in range(count - hostile)]
    files += [_hostile(at) for at in range(hostile)]
    numbers.shuffle(files)
    return files


def _readable(ending: str, at: int, numbers: random.Random) -> MixedFile:
    lines = [
        f"file{at}line{line} {' '.join(numbers.choices(_WORDS, k=20))}."
        for line in range(numbers.randint(3, 30))
    ]
    markers = tuple(line.partition(" ")[0] for line in lines)
    return MixedFile(ending[1:], f"{at}{ending}", _KINDS[ending](lines), "", markers)


def _hostile(at: int) -> MixedFile:
    what = _HOSTILE[at % len(_HOSTILE)]
    [file] = [each for each in HOSTILE if each.what == what]
    is_failure = file.result.startswith(("invalid_file: ", "unsupported_file: "))
    # An upload must be what its ending says; without one of those the bytes alone decide.
    name = f"hostile-{at}.bin" if file.kind == "text" else f"hostile-{at}-{file.name}"
    kind = "hostile, refused" if is_failure else "hostile, read"
    return MixedFile(kind, name, file.make(), file.result if is_failure else "")


def _joined(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _html(lines: list[str]) -> bytes:
    body = "".join(f"<p>{line}</p>" for line in lines)
    return f"<!doctype html><title>page</title><body>{body}</body>".encode()


def _xlsx(lines: list[str]) -> bytes:
    return xlsx("".join(map(cell, lines)))


_KINDS: dict[str, Callable[[list[str]], bytes]] = {
    ".txt": _joined,
    ".md": _joined,
    ".csv": lambda lines: _joined([line.replace(" ", ",") for line in lines]),
    ".py": lambda lines: _joined([f"# {line}" for line in lines]),
    ".json": lambda lines: json.dumps(lines).encode(),
    ".html": _html,
    ".utf16": lambda lines: _joined(lines).decode().encode("utf-16"),
    ".pdf": pages_with_text,
    ".docx": lambda lines: docx("".join(map(paragraph, lines))),
    ".pptx": pptx,
    ".xlsx": _xlsx,
}
"""Ending -> makes a file of these lines."""
