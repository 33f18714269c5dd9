"""What a worker and the process that reads a file for it exchange. Both import it.

The process gets its limits as an argument, and writes frames to its standard output, each a head
and a body. The head has the kind of the frame and the length of its body. The last frame is END or
FAILURE; an output without it was broken off.
"""

import json
from dataclasses import asdict, dataclass
from struct import Struct
from typing import Final, Literal, cast, get_args

_MIB = 1024 * 1024

FailureCode = Literal["server_error", "unsupported_file", "invalid_file"]
"""The codes of `last_error` of a vector store's file."""

EMPTY = "The file could not be parsed because it is empty."
NO_TEXT = "The file has no text that could be extracted."
DAMAGED = "The file could not be parsed. It may be damaged."
TYPE = "The file type is not supported."
MEMORY = "The file could not be parsed because that needs too much memory."
TIME = "The file could not be parsed because that takes too long."
SERVER = "The file could not be read because of an error of this server."


class ExtractionFailed(Exception):
    """The file cannot be read, or not to its end. `str()` is a sentence for the user, without
    paths.

    With `server_error` another try may succeed; with the other codes it fails in the same way.
    """

    def __init__(self, code: FailureCode, message: str, cause: str = "") -> None:
        """`cause`: for the log."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.cause = " ".join(cause.split())[:300]


@dataclass(frozen=True, slots=True)
class ExtractionLimits:
    """Bytes and seconds for one file."""

    memory: int = 384 * _MIB
    """Bytes of address space of the process."""
    cpu_time: float = 120.0
    """Seconds of CPU of the process."""
    time: float = 900.0
    """Seconds that the caller waits for the process. The time in which the caller works on what it
    has got does not count."""
    text: int = 32 * _MIB
    """Bytes of the text in UTF-8."""
    unpacked: int = 256 * _MIB
    """Bytes that the parts of an Office file have when they are unpacked, without its pictures."""

    def encode(self) -> str:
        """As an argument of the process."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, argument: str) -> "ExtractionLimits":
        """What `encode` made."""
        return cls(**json.loads(argument))


def shown(size: int) -> str:
    """A number of bytes for the user."""
    return f"{size // _MIB} MiB" if size >= _MIB else f"{size} bytes"


HEAD: Final = Struct(">cI")
TEXT: Final = b"T"
"""Text in UTF-8."""
FAILURE: Final = b"F"
"""JSON: code, message, cause."""
END: Final = b"E"
"""There is no more text; the body is empty."""
PIECE: Final = 64 * 1024
"""Longest body in bytes."""


def too_much_text(most: int) -> ExtractionFailed:
    """The failure of a file with more than so many bytes of text."""
    return ExtractionFailed(
        "invalid_file",
        "The file could not be parsed because it is too large: "
        f"it has more than {shown(most)} of text.",
    )


def encode_frame(kind: bytes, body: bytes = b"") -> bytes:
    """One frame."""
    return HEAD.pack(kind, len(body)) + body


def encode_failure(failure: ExtractionFailed) -> bytes:
    """A FAILURE frame."""
    return encode_frame(
        FAILURE, json.dumps([failure.code, failure.message, failure.cause]).encode()
    )


def decode_failure(body: bytes) -> ExtractionFailed:
    """The failure in a FAILURE frame; a `server_error` if the body is none."""
    try:
        code, message, cause = json.loads(body)
    except ValueError:
        return ExtractionFailed("server_error", SERVER, "the failure cannot be decoded")
    if code not in get_args(FailureCode):
        return ExtractionFailed("server_error", SERVER, f"unknown code {code}")
    return ExtractionFailed(cast("FailureCode", code), str(message), str(cause))
