"""An upstream of `/v1/images/*` for the fake one: small images, whole or in a stream."""

import base64
import json
import struct
import zlib
from typing import Any

from tests.support.api import JSON
from tests.support.fake_upstream import Exchange, Script, Step

IMAGE_MODEL = "painter"
"""The model that makes images."""


def png(shade: int = 0, size: int = 1) -> bytes:
    """A grey image of one pixel. `size`: kilobytes of an uncompressed text in it."""

    def part(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    head = part(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    pixels = part(b"IDAT", zlib.compress(bytes((0, shade))))
    padding = part(b"tEXt", b"x\0" + b"x" * (1024 * size))
    return b"\x89PNG\r\n\x1a\n" + head + padding + pixels + part(b"IEND", b"")


def b64(content: bytes) -> str:
    """As the Images API sends it."""
    return base64.b64encode(content).decode()


USAGE: JSON = {
    "input_tokens": 11,
    "output_tokens": 22,
    "total_tokens": 33,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 11},
}


def answered(body: JSON | bytes, status: int = 200) -> Step:
    """This answer."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def step(exchange: Exchange) -> None:
        await exchange.answer(status, raw, {"content-type": "application/json"})

    return step


def image(content: bytes, **fields: Any) -> Script:
    """An answer with this image."""
    entry = {"b64_json": b64(content), "revised_prompt": "A revised cat"}
    return [answered({"created": 1, "data": [entry], "usage": USAGE, **fields})]


def streamed(partial: list[bytes], last: bytes, kind: str = "image_generation") -> Script:
    """A stream with partial images, and the image."""

    async def step(exchange: Exchange) -> None:
        for number, content in enumerate(partial):
            event = {
                "type": f"{kind}.partial_image",
                "b64_json": b64(content),
                "partial_image_index": number,
            }
            await exchange.event(event)
        event = {"type": f"{kind}.completed", "b64_json": b64(last), "usage": USAGE}
        await exchange.event(event)

    return [step]
