"""Why a file has no text. Also imported by the process that reads it."""

from typing import Literal

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
