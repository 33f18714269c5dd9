"""Padding of delta events: on an encrypted connection, the length of an event would reveal the
length of the model's token.

The padding is added while events are sent, never stored. It depends only on the event, so that
every reader who asks for it gets the same bytes, live or replayed (I4).
"""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from models.wire.events import split_frames
from models.wire.request import CreateRequest

_PADDING_STEP = 64
"""Bytes of which the length of every delta event becomes a multiple."""
_FIELD = b',"obfuscation":"%b"}\n\n'
_END = b"}\n\n"


def obfuscate_if_requested(
    blocks: AsyncGenerator[bytes], request: CreateRequest
) -> AsyncGenerator[bytes]:
    """The frames of a new response, padded if its request asks for it."""
    return (
        obfuscate(blocks)
        if request.parameters.get("stream_options", {}).get("include_obfuscation")
        else blocks
    )


async def obfuscate(blocks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The same frames, each delta with a field `obfuscation`. Closing it closes `blocks`."""
    async with aclosing(blocks):
        async for block in blocks:
            padded = b"".join(map(_pad, split_frames(block)))
            del block  # as in web/stream/sse.py
            yield padded
            del padded


def _pad(frame: bytes) -> bytes:
    if not frame.partition(b"\n")[0].endswith(b".delta"):
        return frame
    size = len(frame) - len(_END) + len(_FIELD) - len(b"%b")
    padding = hashlib.shake_128(frame, usedforsecurity=False).hexdigest(_PADDING_STEP // 2)[
        : -size % _PADDING_STEP
    ]
    return frame[: -len(_END)] + _FIELD % padding.encode()
