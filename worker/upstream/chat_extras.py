"""What a delta has besides OpenAI's fields: reasoning under other names, pictures, sound, and
fields that nobody knows. Only payloads that the strict decoder refuses come here.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from worker.upstream.lenient_json import REASONING_PARTS, lenient_text, objects_in

REASONING_NAMES = (
    "reasoning_text",
    "thinking",
    "thought",
    "thoughts",
    "thinking_content",
    "thinking_text",
    "thought_content",
    "thought_text",
    "reason_content",
    "chain_of_thought",
)
"""Other names of `reasoning`, in order of precedence."""

RETURNED_NAMES = (
    "extra_content",
    "provider_specific_fields",
    "reasoning_opaque",
    "reasoning_signature",
    "thought_signature",
    "signature",
    "encrypted_content",
)
"""Fields that an upstream wants back. They have nothing for a reader."""

READ_NAMES = frozenset((*REASONING_NAMES, *RETURNED_NAMES, "image", "images", "audio"))
"""Fields of a delta that are read here."""

_TEXT_PARTS = frozenset(("text", "output_text", "refusal", *REASONING_PARTS))
_IMAGE_FIELDS = (
    "image_url",
    "url",
    "image",
    "inline_data",
    "inlineData",
    "source",
    "b64_json",
    "data",
    "result",
    "image_base64",
    "base64",
)
"""Where the address or the bytes of a picture are, from the outside inwards."""
_MEDIA_TYPES = ("mime_type", "mimeType", "media_type", "mediaType")


class Extras(msgspec.Struct, gc=False):
    """The parts of a `Chunk` that OpenAI's chat API does not have."""

    reasoning: str = ""
    text: str = ""
    """What recorded speech says."""
    images: tuple[str, ...] = ()
    has_audio: bool = False
    unread: dict[str, Any] = {}
    """Fields of the delta that the upstream may want back: the known ones of this kind, and beside
    calls all that are not understood."""
    unknown: tuple[str, ...] = ()
    """Where content was that is not understood."""


def extras_of(
    choice: Mapping[str, Any], known_in_choice: Collection[str], known_in_delta: Collection[str]
) -> Extras | None:
    """The extras of a choice, if it has any. The known fields are those that the decoders read,
    that have no content, or that are read here."""
    name = "delta" if isinstance(choice.get("delta"), dict) else "message"
    delta = choice.get(name)
    unknown = [
        f"choice.{field}"
        for field, value in choice.items()
        if field not in known_in_choice and has_content(value)
    ]
    if not isinstance(delta, dict):
        return Extras(unknown=tuple(unknown)) if unknown else None
    fields = {
        field: value
        for field, value in delta.items()
        if field not in known_in_delta and has_content(value)
    }
    names = [field for field in delta if field in READ_NAMES]
    has_parts = isinstance(delta.get("content"), list | dict)
    has_calls = bool(delta.get("tool_calls") or delta.get("function_call"))
    if not (fields or names or unknown or has_parts or has_calls):
        return None
    returned = {field: delta[field] for field in RETURNED_NAMES if has_content(delta.get(field))}
    parts = objects_in(delta.get("content"))
    images = [*_images(delta.get("images")), *_images(delta.get("image"))]
    images += map(_image, filter(_is_image, parts))
    audio = [*objects_in(delta.get("audio")), *filter(_is_audio, parts)]
    unknown += [f"{name}.{field}" for field in (*fields, *_unread(delta, images, audio))]
    unknown += [
        f"{name}.content.{_kind(part) or next(iter(part))}" for part in parts if _is_unknown(part)
    ]
    return Extras(
        reasoning=next(
            filter(None, (_reasoning(delta.get(alias)) for alias in REASONING_NAMES)), ""
        ),
        text="".join(_transcript(sound) for sound in audio),
        images=tuple(filter(None, images)),
        has_audio=any(_has_sound(sound) for sound in audio),
        unread={**_of_calls(delta, known_in_delta), **returned},
        unknown=tuple(unknown),
    )


def _of_calls(delta: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The unknown fields of a message with calls, also numbers: the upstream may want them back."""
    if not (objects_in(delta.get("tool_calls")) or objects_in(delta.get("function_call"))):
        return {}
    return {field: value for field, value in delta.items() if field not in known and value}


def _unread(
    delta: Mapping[str, Any], images: Sequence[str], audio: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """The fields that are known, with content that is not understood."""
    if not any(images):
        yield from (field for field in ("image", "images") if has_content(delta.get(field)))
    if any(map(_has_sound, audio)) or isinstance(delta.get("audio"), str):
        yield "audio"
    for field in ("tool_calls", "function_call"):
        if has_content(delta.get(field)) and not objects_in(delta[field]):
            yield field


def has_content(value: Any) -> bool:
    """Whether a value may be something for a reader: text, or a list or object with text."""
    if isinstance(value, dict):
        return any(map(has_content, value.values()))
    if isinstance(value, list):
        return any(map(has_content, value))
    return isinstance(value, str) and bool(value)


def _reasoning(raw: Any) -> str:
    """The text of reasoning: a string, an object that holds one, or a list of these."""
    if isinstance(raw, list):
        return "".join(map(_reasoning, raw))
    if isinstance(raw, dict):
        names = ("text", "content", "thinking", "thought", "reasoning", "summary")
        return next(filter(None, (_reasoning(raw.get(name)) for name in names)), "")
    return raw if isinstance(raw, str) else ""


def _kind(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    return kind if isinstance(kind, str) else ""


def _media_type(part: Mapping[str, Any]) -> str:
    data = part.get("inline_data") or part.get("inlineData") or part
    names = _MEDIA_TYPES if isinstance(data, dict) else ()
    return next((data[name] for name in names if isinstance(data.get(name), str)), "")


def _is_image(part: Mapping[str, Any]) -> bool:
    return "image" in _kind(part) or _media_type(part).startswith("image/")


def _is_audio(part: Mapping[str, Any]) -> bool:
    return "audio" in _kind(part) or _media_type(part).startswith("audio/")


def _is_unknown(part: Mapping[str, Any]) -> bool:
    if _kind(part) in _TEXT_PARTS or _is_audio(part) or lenient_text(part):
        return False
    if _is_image(part):
        return not _image(part)
    return has_content({name: value for name, value in part.items() if name not in ("type", "id")})


def _images(raw: Any) -> list[str]:
    return [_image(image) for image in (raw if isinstance(raw, list) else [raw])]


def _image(raw: Any, media_type: str = "image/png") -> str:
    """The address of a picture, or its bytes as a data URL; empty if there is neither."""
    if isinstance(raw, str) and raw:
        is_url = raw.startswith(("data:", "http://", "https://"))
        return raw if is_url else f"data:{media_type};base64,{raw}"
    if not isinstance(raw, dict):
        return ""
    media_type = _media_type(raw) or media_type
    return next(
        filter(None, (_image(raw.get(name), media_type) for name in _IMAGE_FIELDS)),
        "",
    )


def _transcript(sound: Mapping[str, Any]) -> str:
    """What the sound says, in `audio` of a message or in a part that has an `audio` of its own."""
    inner = sound.get("audio")
    text = sound.get("transcript") or (inner.get("transcript") if isinstance(inner, dict) else "")
    return text if isinstance(text, str) else ""


def _has_sound(sound: Mapping[str, Any]) -> bool:
    names = ("id", "type", "transcript", "format", *_MEDIA_TYPES, "expires_at")
    return has_content({name: value for name, value in sound.items() if name not in names})
