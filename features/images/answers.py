"""What upstreams answer on `/v1/images/*`. Pure.

An image is base64 in `b64_json`, also as a data URL; engines and older models answer with an
address in `url` (LocalAI, DALL-E). Others mix both fields up, have `images` in the place of `data`
(SiliconFlow, fal), or texts in the list (the WebUI of Stable Diffusion). Servers that know no
`stream` answer a stream's request with JSON. A stream ends with `image_generation.completed` or
`image_edit.completed`.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import orjson

from models.files.kinds import IMAGES, Examination
from models.upstream_errors.frames import ErrorReport, report_of, report_of_text
from models.wire.json_input import clean_text

MODERATION_BLOCKED = "moderation_blocked"
_SHOWN_FIELDS = ("size", "quality", "background", "output_format")
_MAX_TEXT = 32_000
"""Characters of a revised prompt; as many as OpenAI takes of a prompt."""


class NoImage(Exception):
    """There is no image. The message is for the model and the client. `code`: the upstream's."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class ImageAnswer:
    """An answer with an image, or with its address."""

    data: str
    """the image in base64, as it came; empty if there is an address"""
    url: str
    fields: dict[str, str]
    """of the item: `revised_prompt`, `size`, …"""
    usage: dict[str, Any]
    """an object with `usage`; without it if the upstream counts nothing"""


def parse_json(raw: bytes) -> Any:
    """The JSON of a body or an event. Raises NoImage."""
    try:
        return orjson.loads(raw)
    except ValueError:
        raise NoImage("The upstream's answer is no JSON.") from None


def image_of(answer: Any) -> ImageAnswer:
    """The image in a JSON answer, or in the last event of a stream. Raises NoImage."""
    if not isinstance(answer, dict):
        raise NoImage("The upstream's answer has no image.")
    entries = answer.get("data") or answer.get("images")
    entry = entries[0] if isinstance(entries, list) and entries else answer
    if isinstance(entry, str):
        entry = {"b64_json": entry}
    image = ""
    if isinstance(entry, dict):
        image = _text(entry.get("b64_json")) or _text(entry.get("url"))
    if not image:
        raise NoImage("The upstream's answer has no image.")
    is_address = image.startswith(("http://", "https://"))
    data, url = ("", image) if is_address else (image, "")
    whole = {**answer, **entry}
    fields = {name: text for name in _SHOWN_FIELDS if 0 < len(text := _text(whole.get(name))) < 64}
    if revised := clean_text(_text(whole.get("revised_prompt")))[:_MAX_TEXT]:
        fields["revised_prompt"] = revised
    return ImageAnswer(data, url, fields, {"usage": answer.get("usage")})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def decoded(data: str, max_bytes: int) -> bytes:
    """The image in base64 or a data URL. Raises NoImage if it is none, or is too large."""
    if data.startswith("data:"):
        data = data.partition(",")[2]
    # Some encoders divide lines, or leave the padding out.
    data = "".join(data.split())
    data += "=" * (-len(data) % 4)
    if len(data) // 4 * 3 > max_bytes + 3:
        raise too_large(max_bytes)
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise NoImage("The image is no valid base64.") from None
    kind_of(content, max_bytes)
    return content


def kind_of(content: bytes, max_bytes: int) -> str:
    """The media type of an image. Raises NoImage if the bytes are none, or too many."""
    if len(content) > max_bytes:
        raise too_large(max_bytes)
    examination = Examination()
    examination.feed(content[:1024])
    kind = examination.kind()
    if kind not in IMAGES:
        raise NoImage("It is no image of a supported format: .jpeg, .png, .gif, .webp.")
    return kind


def too_large(max_bytes: int) -> NoImage:
    """An image has more bytes than it may have."""
    return NoImage(f"The image is larger than {max_bytes} bytes.")


def report_in(raw: bytes) -> ErrorReport:
    """What an error's body says."""
    try:
        return report_of(orjson.loads(raw))
    except (ValueError, RecursionError):
        return report_of_text(raw.decode(errors="replace").strip())
