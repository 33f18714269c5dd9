"""The program that reads one file:
`python -m features.retrieval.extract.child LIMITS ENDING PARENT`.

Standard input is the file, standard output gets frames (child_protocol.py). ENDING is that of
the file's name, such as `.pdf`; PARENT is the number of the process that reads the frames. The
program may compute, and read the code that it imports, and nothing else.
"""

import errno
import math
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from io import IncrementalNewlineDecoder
from typing import Final

from features.retrieval.extract import child_protocol
from models.confinement.policy import Policy, confine

_OPEN_FILES = 64
_OWN = ("models", "features")
_LIBRARIES = ("pypdf", "defusedxml")
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
"""Libraries in C that modules of Python use."""
_CHARACTERS: Final = 16_000
"""Of one piece: less than 64 KiB in UTF-8."""
_OUT_OF_MEMORY = child_protocol.encode_failure(
    child_protocol.ExtractionFailed("invalid_file", child_protocol.MEMORY, "MemoryError")
)
"""Made while there is memory."""
_OWN_ERRORS = frozenset((errno.EIO, errno.ESTALE))
"""Errors of the disk. Others, such as a seek to before the beginning, come from a damaged file."""


def main(argument: str, ending: str, parent: str) -> None:
    """Writes the frames of the file."""
    limits = child_protocol.ExtractionLimits.decode(argument)
    output = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no frame
    confine_reader(limits, int(parent))
    try:
        _send(output, _last_frame(output, ending, limits))
    except MemoryError:
        _send(output, _OUT_OF_MEMORY)


def _last_frame(output: int, ending: str, limits: child_protocol.ExtractionLimits) -> bytes:
    """Sends the text; returns the frame that says how it has ended. Raises MemoryError."""
    try:
        # With the limits in force, because it imports the libraries.
        from features.retrieval.extract.reading import read_text

        with open(0, "rb", closefd=False) as file:
            for piece in text_pieces(read_text(file, ending, limits), limits.text):
                _send(output, child_protocol.encode_frame(child_protocol.TEXT, piece))
    except child_protocol.ExtractionFailed as failure:
        return child_protocol.encode_failure(failure)
    except (MemoryError, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 - what libraries raise for a damaged file
        return child_protocol.encode_failure(_failure_of(error))
    return child_protocol.encode_frame(child_protocol.END)


def _failure_of(error: Exception) -> child_protocol.ExtractionFailed:
    cause = f"{type(error).__name__}: {str(error)[:200]}"
    if isinstance(error, ImportError) or getattr(error, "errno", None) in _OWN_ERRORS:
        return child_protocol.ExtractionFailed("server_error", child_protocol.SERVER, cause)
    return child_protocol.ExtractionFailed("invalid_file", child_protocol.DAMAGED, cause)


def _send(output: int, frame: bytes) -> None:
    rest = memoryview(frame)
    while rest:
        rest = rest[os.write(output, rest) :]


def text_pieces(texts: Iterable[str], most: int) -> Iterator[bytes]:
    """The joined texts in UTF-8, in pieces of at most 64 KiB. Lines end with LF, U+0000 is left
    out, and what cannot be encoded is replaced.

    Raises ExtractionFailed for more than `most` bytes, and at the end if there was no text.
    """
    sent = 0
    has_text = False
    for text in _joined(texts):
        piece = text.encode(errors="replace")
        sent += len(piece)
        if sent > most:
            raise child_protocol.too_much_text(most)
        has_text = has_text or not text.isspace()
        yield piece
    if not has_text:
        raise child_protocol.ExtractionFailed("invalid_file", child_protocol.NO_TEXT)


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """The same text in strings of at most `_CHARACTERS`; short ones are joined."""
    newlines = IncrementalNewlineDecoder(None, translate=True)
    waiting: list[str] = []
    count = 0
    for text in texts:
        for start in range(0, len(text), _CHARACTERS):
            part = newlines.decode(text[start : start + _CHARACTERS].replace("\0", ""))
            if count + len(part) > _CHARACTERS:
                yield "".join(waiting)
                waiting, count = [], 0
            waiting.append(part)
            count += len(part)
    waiting.append(newlines.decode("", final=True))
    if rest := "".join(waiting):
        yield rest


def confine_reader(limits: child_protocol.ExtractionLimits, parent: int) -> None:
    """Confines this process for good. Ends it if `parent`, a process, has already ended. Raises
    OSError."""
    policy = Policy(
        memory=limits.memory,
        cpu_seconds=math.ceil(limits.cpu_time),
        open_files=_OPEN_FILES,
        readable=(*_code(), *_SYSTEM),
    )
    confine(policy, parent)


def _code() -> set[str]:
    """Folders with code. Of our own packages only these themselves: what is beside them may be
    files and keys, in a checkout. Beside a library are those that it needs."""
    standard = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib takes longer to import
    folders = {standard, f"{sys.base_exec_prefix}/{sys.platlibdir}"}
    for name in (*_OWN, *_LIBRARIES):
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            folder = spec.submodule_search_locations[0]
            folders.add(folder if name in _OWN else os.path.dirname(folder))  # noqa: PTH120
    return folders


if __name__ == "__main__":
    main(*sys.argv[1:])
