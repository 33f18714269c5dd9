"""What the reading process writes to its standard output: frames, each a head and a body.

The head has the kind of the frame and the length of its body. The last frame is END or FAILURE; an
output without it was broken off.
"""

import json
from struct import Struct
from typing import Final, cast, get_args

from features.retrieval.extract.extraction_failed import SERVER, ExtractionFailed, FailureCode

HEAD: Final = Struct(">cI")
TEXT: Final = b"T"
"""Text in UTF-8."""
FAILURE: Final = b"F"
"""JSON: code, message, cause."""
END: Final = b"E"
"""There is no more text; the body is empty."""
PIECE: Final = 64 * 1024
"""Longest body in bytes."""


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
