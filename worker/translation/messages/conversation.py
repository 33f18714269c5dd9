"""The messages of a chat request become `system` and the turns of the Messages API.

Turns alternate between user and model, and the first and the last one is a user's. Results of tools
come first in the turn after their calls. No text is blank: the builder of chat messages sees to it.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from models.errors import UpstreamFailed
from worker.translation.chat.message_order import with_users_at_the_ends
from worker.translation.history.walk import INVALID_ARGUMENTS

Block = dict[str, Any]
Turn = dict[str, Any]

THINKING = ("thinking", "redacted_thinking")
"""Types of blocks with the model's thinking."""
_MAX_DEPTH = 500
"""Levels of a call's arguments: an encoder ends at a thousand, with those around them."""
_PDF = "application/pdf"
_DATA_URL = re.compile(r"data:([^;,]*)[^,]{0,200},")


class File(Protocol):
    """A file whose data is in memory only while a request is sent."""

    media_type: str

    def __len__(self) -> int:
        """Characters of its data URL."""
        ...

    def data_url_pieces(self) -> Iterator[bytes]:
        """Its data URL in pieces."""
        ...


class FileData:
    """The base64 of a file, in the place of a text."""

    def __init__(self, file: File) -> None:
        self._file = file

    def __len__(self) -> int:
        """Characters, about, as of a text in its place."""
        return len(self._file)

    def data_url_pieces(self) -> Iterator[bytes]:
        """Its base64 in pieces: the first piece of a data URL is what stands before it."""
        pieces = self._file.data_url_pieces()
        next(pieces)
        return pieces


class FileText(FileData):
    """The text of a file, in the place of a text."""

    def data_url_pieces(self) -> Iterator[bytes]:
        """The text as it stands between the quotes of JSON."""
        content = b"".join(base64.b64decode(piece) for piece in super().data_url_pieces())
        yield json.dumps(content.decode(errors="replace"))[1:-1].encode()


def conversation_of(messages: Sequence[dict[str, Any]]) -> tuple[list[Block], list[Turn]]:
    """`system` and `messages` for the messages that `chat_messages` makes for this API. Raises
    UpstreamFailed for content that the API has no block for."""
    system: list[Block] = []
    turns: list[Turn] = []
    for message in with_users_at_the_ends(messages):
        role = message["role"]
        if role in ("system", "developer"):
            blocks = _user_blocks(message["content"])
            if not turns:
                system += blocks
                continue
            # In its place: a change of `system` would make all thinking before it invalid, and
            # only the newest models have a role for it.
            blocks = [
                {"type": "text", "text": f"<system-reminder>\n{block['text']}\n</system-reminder>"}
                for block in blocks
            ]
        elif role == "assistant":
            blocks = list(_assistant_blocks(message))
        elif role == "tool":
            blocks = [_tool_result(message)]
        else:
            blocks = _user_blocks(message["content"])
        speaker = "assistant" if role == "assistant" else "user"
        if turns and turns[-1]["role"] == speaker:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": speaker, "content": blocks})
    return system, turns


def _assistant_blocks(message: dict[str, Any]) -> Iterator[Block]:
    if "blocks" not in message:
        yield {"type": "text", "text": message["content"]}
        return
    calls = iter(message.get("tool_calls", ()))
    for block in message["blocks"]:
        if not block:
            call = next(calls)
            function = call["function"]
            yield {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": _input(function["arguments"]),
            }
        elif block.get("type") in (*THINKING, "text"):
            yield block


def _input(arguments: str) -> dict[str, Any]:
    """The object in these arguments; of one that is nested too deeply to be sent, its text."""
    try:
        value: dict[str, Any] = json.loads(arguments, parse_float=_finite)
    except RecursionError:
        return {INVALID_ARGUMENTS: arguments}
    level, depth = [value], 0
    while level and depth <= _MAX_DEPTH:
        level, depth = [child for each in level for child in _children(each)], depth + 1
    return {INVALID_ARGUMENTS: arguments} if level else value


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _finite(number: str) -> float | str:
    value = float(number)
    return value if math.isfinite(value) else number


def _tool_result(message: dict[str, Any]) -> Block:
    content = message["content"]
    result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
    if not content:
        return result
    return {**result, "content": content if isinstance(content, str) else _user_blocks(content)}


def _user_blocks(content: str | list[dict[str, Any]]) -> list[Block]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_block(part) for part in content]


def _block(part: dict[str, Any]) -> Block:
    match part["type"]:
        case "text":
            return {"type": "text", "text": part["text"]}
        case "image_url":
            url = part["image_url"]["url"]
            if isinstance(url, str) and not url.startswith("data:"):
                return {"type": "image", "source": {"type": "url", "url": url}}
            return {"type": "image", "source": _base64_source(url)}
        case "file":
            return _document(part["file"])
        case _:
            raise _unsendable("no sound")


def _document(file: dict[str, Any]) -> Block:
    data = file["file_data"]
    media_type = _media_type(data)
    if media_type.startswith("text/") or media_type == "application/json":
        source = {"type": "text", "media_type": "text/plain", "data": _text_of(data)}
    elif media_type == _PDF:
        source = _base64_source(data)
    else:
        raise _unsendable(f"no files of the type '{media_type}', only PDF and text")
    title = {"title": file["filename"]} if file.get("filename") else {}
    return {"type": "document", "source": source, **title}


def _media_type(data: str | File) -> str:
    """The media type of a file, or of a data URL; of base64 alone that of a PDF."""
    if not isinstance(data, str):
        return data.media_type
    found = _DATA_URL.match(data)
    return _PDF if found is None else found[1].lower() or "text/plain"


def _base64_source(data: str | File) -> dict[str, Any]:
    encoded = data.partition(",")[2] or data if isinstance(data, str) else FileData(data)
    return {"type": "base64", "media_type": _media_type(data), "data": encoded}


def _text_of(data: str | File) -> str | FileText:
    if not isinstance(data, str):
        return FileText(data)
    try:
        return base64.b64decode(data.partition(",")[2]).decode(errors="replace")
    except binascii.Error:
        raise _unsendable("no text file whose base64 is not valid") from None


def _unsendable(what: str) -> UpstreamFailed:
    return UpstreamFailed.of_request(
        f"This model's upstream takes {what}.",
        "file_unavailable",
        param="input",
        envelope_code="invalid_file",
    )
