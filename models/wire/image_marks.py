"""Images of items that are stored as files (docs/tools.md): in the place of its base64, the item of
an image call has a mark. Readers put the image back (models/files/response_images.py).

A mark names no file: it means the image that was stored for the item that has it. So one that is
copied elsewhere shows nothing. It is an object, and what clients and upstreams send as `result` is
a text. Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_KIND = "image_generation_call"
_FIELD, _SIZE = "stored_image", "size"
_BYTES = f'"{_FIELD}"'.encode()
"""What JSON with a mark has in it. In a text, the quotes would be escaped."""


@dataclass(frozen=True, slots=True)
class ImageMark:
    """A mark, and the item that has it."""

    item: dict[str, Any]
    digest: str
    """SHA-256 of the image, in hex"""
    size: int
    """characters of its base64"""


def image_mark(digest: str, size: int) -> dict[str, Any]:
    """The `result` of an item whose image is stored as a file. `digest`: of its `size` bytes."""
    return {_FIELD: digest, _SIZE: (size + 2) // 3 * 4}


def may_have_marks(encoded: bytes) -> bool:
    """Whether encoded JSON may have a mark. A look at the bytes, for streams of text."""
    return encoded.find(_BYTES) >= 0


def marks_of(items: Iterable[Any]) -> Iterator[ImageMark]:
    """The marks of those of the items that have one."""
    for item in items:
        if type(item) is dict and item.get("type") == _KIND:
            result = item.get("result")
            if type(result) is dict and result.keys() == {_FIELD, _SIZE}:
                yield ImageMark(item, result[_FIELD], result[_SIZE])


def marked_sizes(items: Any) -> int:
    """Characters of all images that a list of items has marks of."""
    return sum(mark.size for mark in marks_of(items)) if type(items) is list else 0


def items_of(event: dict[str, Any]) -> list[Any]:
    """The items that an event shows whole: its own, or those of its response."""
    if "item" in event:
        return [event["item"]]
    return (event.get("response") or {}).get("output") or []
