"""The program that reads one file:
`python -m features.retrieval.extract.child LIMITS ENDING PARENT`.

Standard input is the file, standard output gets frames (frames.py). ENDING is that of the file's
name, such as `.pdf`; PARENT is the number of the process that reads the frames.
"""

import errno
import os
import sys

from features.retrieval.extract.confinement import confine_reader
from features.retrieval.extract.extraction_failed import DAMAGED, MEMORY, SERVER, ExtractionFailed
from features.retrieval.extract.frames import END, TEXT, encode_failure, encode_frame
from features.retrieval.extract.limits import ExtractionLimits
from features.retrieval.extract.text_pieces import text_pieces

_OUT_OF_MEMORY = encode_failure(ExtractionFailed("invalid_file", MEMORY, "MemoryError"))
"""Made while there is memory."""
_OWN_ERRORS = frozenset((errno.EIO, errno.ESTALE))
"""Errors of the disk. Others, such as a seek to before the beginning, come from a damaged file."""


def main(argument: str, ending: str, parent: str) -> None:
    """Writes the frames of the file."""
    limits = ExtractionLimits.decode(argument)
    output = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no frame
    confine_reader(limits, int(parent))
    try:
        _send(output, _last_frame(output, ending, limits))
    except MemoryError:
        _send(output, _OUT_OF_MEMORY)


def _last_frame(output: int, ending: str, limits: ExtractionLimits) -> bytes:
    """Sends the text; returns the frame that says how it has ended. Raises MemoryError."""
    try:
        # With the limits in force, because it imports the libraries.
        from features.retrieval.extract.reading import read_text

        with open(0, "rb", closefd=False) as file:
            for piece in text_pieces(read_text(file, ending, limits), limits.text):
                _send(output, encode_frame(TEXT, piece))
    except ExtractionFailed as failure:
        return encode_failure(failure)
    except (MemoryError, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 - what libraries raise for a damaged file
        return encode_failure(_failure_of(error))
    return encode_frame(END)


def _failure_of(error: Exception) -> ExtractionFailed:
    cause = f"{type(error).__name__}: {str(error)[:200]}"
    if isinstance(error, ImportError) or getattr(error, "errno", None) in _OWN_ERRORS:
        return ExtractionFailed("server_error", SERVER, cause)
    return ExtractionFailed("invalid_file", DAMAGED, cause)


def _send(output: int, frame: bytes) -> None:
    rest = memoryview(frame)
    while rest:
        rest = rest[os.write(output, rest) :]


if __name__ == "__main__":
    main(*sys.argv[1:])
