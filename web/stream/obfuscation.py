"""Padding for those who ask for it: on an encrypted line, the length of an event tells how long the model's word was (contract §4.1).

It is added while events go out to one reader, never stored. It depends on the event alone, so that every reader who asks gets the same
bytes, live as replayed (I4); nobody is to be surprised by it, only the length is to tell nothing.
"""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from models.wire.events import split_frames
from models.wire.request import CreateRequest

_PADDING_STEP = 64
"""Bytes of which the length of every delta's event becomes a multiple."""
_FIELD = b',"obfuscation":"%b"}\n\n'
_END = b"}\n\n"


def obfuscate_if_requested(
    blocks: AsyncGenerator[bytes], request: CreateRequest
) -> AsyncGenerator[bytes]:
    """The frames of a new response as its request wants them."""
    return (
        obfuscate(blocks)
        if request.parameters.get("stream_options", {}).get("include_obfuscation")
        else blocks
    )


async def obfuscate(blocks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The same frames, each delta with an `obfuscation`. Closes `blocks` when it is closed itself."""
    async with aclosing(blocks):
        async for block in blocks:
            yield b"".join(map(_pad, split_frames(block)))


def _pad(frame: bytes) -> bytes:
    if not frame.partition(b"\n")[0].endswith(b".delta"):
        return frame
    bare = len(frame) - len(_END) + len(_FIELD) - len(b"%b")
    padding = hashlib.shake_128(frame, usedforsecurity=False).hexdigest(_PADDING_STEP // 2)[
        : -bare % _PADDING_STEP
    ]
    return frame[: -len(_END)] + _FIELD % padding.encode()
