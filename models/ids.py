"""Identifiers: UUIDv7 inside, `resp_<32 hex>` and `conv_<32 hex>` outside, `msg_…`, `fc_…` and so on for items."""

import os
import re
import time
from uuid import UUID

RESPONSE_ID_PATTERN = "resp_[0-9a-f]{32}"
CONVERSATION_ID_PATTERN = "conv_[0-9a-f]{32}"
_RESPONSE = re.compile(RESPONSE_ID_PATTERN)
_CONVERSATION = re.compile(CONVERSATION_ID_PATTERN)


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
    return UUID(hex=text.removeprefix("resp_")) if _RESPONSE.fullmatch(text) else None


def conversation_id(value: UUID) -> str:
    """`conv_<32 hex>`: how a conversation's id looks outside."""
    return f"conv_{value.hex}"


def parse_conversation_id(text: str) -> UUID | None:
    """The UUID behind `conv_<32 hex>`, or None when no conversation of ours can have that id."""
    return UUID(hex=text.removeprefix("conv_")) if _CONVERSATION.fullmatch(text) else None


def new_item_id(prefix: str) -> str:
    """A fresh item or call id: `<prefix>_<32 hex>`, for example `msg_…`, `fc_…`, `call_…`."""
    return f"{prefix}_{new_uuid().hex}"
