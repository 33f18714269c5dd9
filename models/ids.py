"""Identifiers. Responses and conversations have a UUIDv7 in the database, and `resp_<32 hex>` or
`conv_<32 hex>` in the API; items have `msg_…`, `fc_…` and so on in both."""

import os
import re
import threading
import time
from collections.abc import Iterable
from uuid import UUID

FILE, UPLOAD, UPLOAD_PART = "file-", "upload_", "part_"
"""The prefixes of ids of files."""
PROJECT, API_KEY, SERVICE_ACCOUNT = "proj", "key", "svc_acct"
WEBHOOK_ENDPOINT, EVENT = "whe", "evt"
"""The prefixes of ids of the admin API, and of webhooks."""
SCHEDULE, SCHEDULE_RUN = "sched", "schedrun"
"""The prefixes of ids of schedules, and of their runs."""
VECTOR_STORE, FILE_BATCH = "vs", "vsfb"
"""The prefixes of ids of vector stores, and of the batches of files of one."""
CONTAINER, CONTAINER_FILE = "cntr", "cfile"
"""The prefixes of ids of containers, and of the files of one."""
STEER = "steer"
"""The prefix of ids of inputs that were sent to a running response."""
RESPONSE_ID_PATTERN = "resp_[0-9a-f]{32}"
_HEX = re.compile("[0-9a-f]{32}")
_ITEM = re.compile("[a-z]+_([0-9a-f]{12})7([0-9a-f]{3})[0-9a-f]{16}")


class _Clock:
    """The time in units of 1/4096 millisecond, the first 60 bits of a UUIDv7. Each reading is later
    than the one before, in all threads of the process."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def read(self) -> int:
        """A time that is later than every earlier reading."""
        with self._lock:
            self._last = max(self._last + 1, (time.time_ns() << 12) // 1_000_000)
            return self._last

    def advance_beyond(self, reading: int) -> None:
        """Every later reading is later than this one."""
        with self._lock:
            self._last = max(self._last, reading)


_clock = _Clock()


def new_uuid() -> UUID:
    """A UUIDv7: 48 bits of milliseconds, 12 bits of their fraction, then 62 random bits.

    Those of one process sort by the order in which they were made. Rows created at the same time
    are neighbours in an index.
    """
    return UUID(int=_new_number())


def _new_number() -> int:
    """The 128 bits of a new UUIDv7."""
    reading = _clock.read()
    random_bits = int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF
    milliseconds, fraction = reading >> 12 & 0xFFFF_FFFF_FFFF, reading & 0xFFF
    return milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | random_bits


def unix_seconds(value: UUID) -> float:
    """When a UUIDv7 was made, in seconds since the epoch, on the clock of its process."""
    return (value.int >> 80) / 1000


def first_id_at(seconds: float) -> UUID:
    """The smallest id that can be made at a time. `seconds`: since the epoch."""
    return UUID(int=int(seconds * 1000) << 80)


def _parse(text: str, prefix: str) -> UUID | None:
    digits = text.removeprefix(prefix)
    return UUID(hex=digits) if digits != text and _HEX.fullmatch(digits) else None


def response_id(value: UUID) -> str:
    """A response's id in the API: `resp_<32 hex>`."""
    return f"resp_{value.hex}"


def parse_response_id(text: str) -> UUID | None:
    """The UUID of `resp_<32 hex>`; None for any other text."""
    return _parse(text, "resp_")


def conversation_id(value: UUID) -> str:
    """A conversation's id in the API: `conv_<32 hex>`."""
    return f"conv_{value.hex}"


def parse_conversation_id(text: str) -> UUID | None:
    """The UUID of `conv_<32 hex>`; None for any other text."""
    return _parse(text, "conv_")


def admin_id(prefix: str, value: UUID) -> str:
    """The id of a project, key, endpoint and so on in the API: `<prefix>_<32 hex>`."""
    return f"{prefix}_{value.hex}"


def parse_admin_id(prefix: str, text: str) -> UUID | None:
    """The UUID of `<prefix>_<32 hex>`; None for any other text."""
    return _parse(text, f"{prefix}_")


def file_id(value: UUID, prefix: str = FILE) -> str:
    """The id of a file in the API: `file-<32 hex>`; with another prefix that of an upload or of one
    of its parts."""
    return f"{prefix}{value.hex}"


def parse_file_id(text: str, prefix: str = FILE) -> UUID | None:
    """The UUID of `<prefix><32 hex>`; None for any other text."""
    return _parse(text, prefix)


def batch_id(value: UUID) -> str:
    """A batch's id in the API: `batch_<32 hex>`."""
    return f"batch_{value.hex}"


def parse_batch_id(text: str) -> UUID | None:
    """The UUID of `batch_<32 hex>`; None for any other text."""
    return _parse(text, "batch_")


def vector_store_id(value: UUID) -> str:
    """A vector store's id in the API: `vs_<32 hex>`."""
    return f"{VECTOR_STORE}_{value.hex}"


def new_item_id(prefix: str) -> str:
    """A new item or call id: `<prefix>_<32 hex>`, for example `msg_…`, `fc_…`, `call_…`.

    Ids of one prefix sort by the order in which this process made them (docs/wire.md).
    """
    return f"{prefix}_{_new_number():032x}"


def continue_after(item_ids: Iterable[str]) -> None:
    """Lets the ids that this process makes from now on sort after these item ids, which another
    process has made, perhaps by a clock that is ahead. Ids of another form are ignored."""
    for item_id in item_ids:
        made = _ITEM.fullmatch(item_id)
        if made is not None:
            milliseconds, fraction = int(made[1], 16), int(made[2], 16)
            _clock.advance_beyond(milliseconds << 12 | fraction)
