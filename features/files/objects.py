"""What clients see of files, and what they may ask for."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from models.db.queries.common import OF_ITEM
from models.db.queries.file_contents import OF_CONTAINER, FileRow
from models.errors import InvalidRequest
from models.files.kinds import IMAGES, TEXT, Examination, claimed_kind
from models.ids import file_id
from models.wire.checks.faults import missing

SHORTEST_LIFETIME, LONGEST_LIFETIME = 3600, 2_592_000
"""Seconds of `expires_after`."""
_LONGEST_NAME = 255
"""Characters of a name; more are cut off at its front."""


class FilePurpose(StrEnum):
    """What a file is for. Clients may not upload a `batch_output`, nor see a `container` or an
    `image` here."""

    USER_DATA = "user_data"
    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"
    ASSISTANTS = "assistants"
    VISION = "vision"
    CONTAINER = OF_CONTAINER
    IMAGE = OF_ITEM


_MADE_HERE = (FilePurpose.BATCH_OUTPUT, FilePurpose.CONTAINER, FilePurpose.IMAGE)
UPLOADED = tuple(purpose for purpose in FilePurpose if purpose not in _MADE_HERE)


def file_object(row: FileRow) -> dict[str, Any]:
    """The File object."""
    return {
        "id": file_id(row.id),
        "object": "file",
        "bytes": row.bytes,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }


def clean_name(given: str) -> str:
    """The name of a file: text that is shown, and never a path. Without folders and control
    characters; `file` if nothing is left."""
    last = given.replace("\\", "/").rpartition("/")[2]
    shown = "".join(character for character in last if character.isprintable()).strip()
    return shown[-_LONGEST_NAME:] if shown.strip(".") else "file"


def parse_purpose(given: Any) -> FilePurpose:
    """The purpose of an upload. Raises InvalidRequest."""
    if given is None:
        raise missing("purpose")
    if given not in UPLOADED:
        supported = ", ".join(f"'{purpose}'" for purpose in UPLOADED)
        raise InvalidRequest(
            f"Invalid value: '{str(given)[:100]}'. Supported values are: {supported}.",
            param="purpose",
            code="invalid_value",
        )
    return FilePurpose(given)


def parse_expires_after(fields: Mapping[str, Any]) -> timedelta:
    """The lifetime that `anchor` and `seconds` ask for; seconds may be digits, as a form has them.
    Raises InvalidRequest."""
    anchor, seconds = fields.get("anchor"), fields.get("seconds")
    if anchor != "created_at":
        raise InvalidRequest(
            f"Invalid value: '{str(anchor)[:100]}'. Supported values are: 'created_at'.",
            param="expires_after.anchor",
            code="invalid_value",
        )
    if type(seconds) is str and seconds.isascii() and seconds.isdigit() and len(seconds) < 10:
        seconds = int(seconds)
    if type(seconds) is not int:
        raise InvalidRequest(
            "Invalid type for 'expires_after.seconds': expected an integer.",
            param="expires_after.seconds",
            code="invalid_type",
        )
    if not SHORTEST_LIFETIME <= seconds <= LONGEST_LIFETIME:
        below = seconds < SHORTEST_LIFETIME
        raise InvalidRequest(
            f"Invalid 'expires_after.seconds': expected a value from {SHORTEST_LIFETIME} to "
            f"{LONGEST_LIFETIME}, but got {seconds} instead.",
            param="expires_after.seconds",
            code="integer_below_min_value" if below else "integer_above_max_value",
        )
    return timedelta(seconds=seconds)


def shorter_lifetime(wanted: timedelta | None, of_project: timedelta | None) -> timedelta | None:
    """How long a file is kept: not longer than its project keeps anything. None: until it is
    deleted."""
    if wanted is None or of_project is None:
        return wanted or of_project
    return min(wanted, of_project)


def check_kind(filename: str, purpose: str, examination: Examination) -> str | None:
    """What the bytes of the whole file are found to be. Raises InvalidRequest if they are not what
    the file's name or its purpose claims."""
    if not examination.size:
        raise _refused(f"The file '{filename}' is empty.")
    kind = examination.kind()
    claimed = claimed_kind(filename)
    if claimed == TEXT and kind != TEXT and not examination.may_be_text():
        raise _refused(f"The file '{filename}' is not text.")
    if claimed not in (None, TEXT, kind):
        raise _refused(f"The file '{filename}' is not of the type {claimed}, as its name says.")
    if purpose == FilePurpose.BATCH and (kind != TEXT or not filename.lower().endswith(".jsonl")):
        raise _refused(
            "A file of purpose 'batch' must be lines of JSON in UTF-8, and its name must end with "
            f"'.jsonl': '{filename}' is not."
        )
    if purpose == FilePurpose.VISION and kind not in IMAGES:
        supported = ", ".join(sorted(IMAGES))
        raise _refused(
            f"A file of purpose 'vision' must be an image ({supported}): '{filename}' is not."
        )
    return kind


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="file", code="invalid_file")
