"""Identifiers. Responses and conversations have a UUIDv7 in the database, and `resp_<32 hex>` or
`conv_<32 hex>` in the API; items have `msg_…`, `fc_…` and so on in both."""

import os
import re
import time
from uuid import UUID

RESPONSE_ID_PATTERN = "resp_[0-9a-f]{32}"
CONVERSATION_ID_PATTERN = "conv_[0-9a-f]{32}"
_RESPONSE = re.compile(RESPONSE_ID_PATTERN)
_CONVERSATION = re.compile(CONVERSATION_ID_PATTERN)


def new_uuid() -> UUID:
    """A UUIDv7: 48 bits of milliseconds, then random bits. Rows created at the same time are
    neighbours in an index."""
    value = int.from_bytes(os.urandom(10), "big")
    milliseconds = time.time_ns() // 1_000_000
    head = (milliseconds & 0xFFFF_FFFF_FFFF) << 80
    return UUID(
        int=head
        | (0x7 << 76)
        | ((value >> 68 & 0xFFF) << 64)
        | (0b10 << 62)
        | (value & 0x3FFF_FFFF_FFFF_FFFF)
    )


def response_id(value: UUID) -> str:
    """A response's id in the API: `resp_<32 hex>`."""
    return f"resp_{value.hex}"


def parse_response_id(text: str) -> UUID | None:
    """The UUID of `resp_<32 hex>`; None for any other text."""
    return UUID(hex=text.removeprefix("resp_")) if _RESPONSE.fullmatch(text) else None


def conversation_id(value: UUID) -> str:
    """A conversation's id in the API: `conv_<32 hex>`."""
    return f"conv_{value.hex}"


def parse_conversation_id(text: str) -> UUID | None:
    """The UUID of `conv_<32 hex>`; None for any other text."""
    return UUID(hex=text.removeprefix("conv_")) if _CONVERSATION.fullmatch(text) else None


def new_item_id(prefix: str) -> str:
    """A new item or call id: `<prefix>_<32 hex>`, for example `msg_…`, `fc_…`, `call_…`."""
    return f"{prefix}_{new_uuid().hex}"
