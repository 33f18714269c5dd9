"""Identifiers: UUIDv7 inside, `resp_<32 hex>` and `conv_<32 hex>` outside, `msg_…`, `fc_…` and so on for items."""

import os
import re
import time
from uuid import UUID

_RESPONSE = re.compile(r"resp_([0-9a-f]{32})")
_CONVERSATION = re.compile(r"conv_([0-9a-f]{32})")


def new_uuid() -> UUID:
    """A UUIDv7: 48 bits of milliseconds, then random bits; rows made together lie together."""
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
    """`resp_<32 hex>`: how a response's id looks outside."""
    return f"resp_{value.hex}"


def parse_response_id(text: str) -> UUID | None:
    """The UUID behind `resp_<32 hex>`, or None when no response of ours can have that id."""
    found = _RESPONSE.fullmatch(text)
    return UUID(hex=found[1]) if found else None


def conversation_id(value: UUID) -> str:
    """`conv_<32 hex>`: how a conversation's id looks outside."""
    return f"conv_{value.hex}"


def parse_conversation_id(text: str) -> UUID | None:
    """The UUID behind `conv_<32 hex>`, or None when no conversation of ours can have that id."""
    found = _CONVERSATION.fullmatch(text)
    return UUID(hex=found[1]) if found else None


def new_item_id(prefix: str) -> str:
    """A fresh item or call id: `<prefix>_<32 hex>`, for example `msg_…`, `fc_…`, `call_…`."""
    return f"{prefix}_{new_uuid().hex}"
