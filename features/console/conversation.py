"""Items of a response as the entries of a conversation.

Results stand with their calls, and everything but messages is folded. What is left out because of
its size (features/console/page_room.py) is on the page of its item.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from features.console.page_room import (
    PageRoom,
    Part,
    PartKind,
    one_line_json,
    pretty_json,
    sendable,
)
from models.files.kinds import IMAGES, Examination
from models.wire import item_types
from models.wire.events import Item
from models.wire.image_marks import marked_sizes

IMAGE_CALL = "image_generation_call"
_MAX_PARTS = 50
"""Parts of an item that are shown."""
_MAX_SOURCES = 10
"""Sources of a text that are shown."""
_MAX_SUMMARY = 120
"""Characters of the line of a folded entry."""
_MAX_NAME = 200
"""Characters of the name of a tool or a file."""
_LONG = 600
"""Characters of instructions above which they are folded."""
_ROLES = {"assistant": "Assistant", "user": "User", "system": "System", "developer": "Developer"}
_TEXTS = item_types.TEXT_FIELDS | {"input_text": "text", "text": "text"}
"""Types of content parts that are Markdown -> the field of the text."""
_RESULTS = {"output": "Result", "outputs": "Result", "results": "Result", "error": "Error"}
"""Fields of a call that say what became of it -> their names on the page."""
_NO_ARGUMENTS = {"id", "type", "status", "call_id", "name", "namespace", "server_label", "result"}
"""Fields of a call that are no arguments. `result`: an image."""


class EntryKind(StrEnum):
    """What an entry is. Also its class in the style sheet."""

    MESSAGE = "message"
    CALL = "call"
    """of a tool, with its result if that is known"""
    RESULT = "result"
    """of a call that is not on this page"""
    REASONING = "reasoning"
    OTHER = "other"


@dataclass(slots=True)
class Entry:
    """An item."""

    id: str | None
    """of the item; None: it is none"""
    kind: EntryKind
    title: str
    role: str = ""
    """of a message"""
    summary: str = ""
    """the line about a folded entry"""
    parts: list[Part] = field(default_factory=list)
    is_folded: bool = True
    """It is only a line until somebody opens it."""
    is_large: bool = False
    """It was not read, because of its size."""

    @property
    def is_cut(self) -> bool:
        """Whether the page of the item has more of it."""
        return self.is_large or any(part.is_cut for part in self.parts)


def entries_of(items: Iterable[tuple[str, Item | None]], room: PageRoom) -> list[Entry]:
    """The entries of items, in their order. `items`: ids and items; None: it was not read."""
    entries: list[Entry] = []
    calls: dict[str, Entry] = {}
    for identifier, item in items:
        if item is None:
            entries.append(_large_entry(identifier))
            continue
        kind = _type(item)
        call = calls.get(str(item.get("call_id"))) if kind in item_types.OUTPUTS else None
        if call is not None:
            call.parts += _result_parts(item, room)
            continue
        entry = _entry(identifier, item, room)
        entries.append(entry)
        if kind in item_types.CALLS:
            calls[str(item.get("call_id"))] = entry
    return entries


def _large_entry(identifier: str) -> Entry:
    """An item that was not read, because of its size. An image is shown by its id."""
    if not is_image_id(identifier):
        return Entry(identifier, EntryKind.OTHER, "A large item", is_large=True)
    entry = Entry(identifier, EntryKind.CALL, _words("image_generation"), is_folded=False)
    entry.parts.append(Part(PartKind.IMAGE, "Image"))
    return entry


def is_image_id(identifier: str) -> bool:
    """Whether the id is one of calls that make images."""
    return identifier.startswith(f"{item_types.ID_PREFIXES[IMAGE_CALL]}_")


def instructions_entry(instructions: object, room: PageRoom) -> Entry | None:
    """What the request instructs the model to do; None: nothing."""
    if not instructions:
        return None
    text = instructions if isinstance(instructions, str) else pretty_json(instructions)
    return _text_entry(None, "Instructions", "system", text, room)


def _text_entry(identifier: str | None, title: str, role: str, text: str, room: PageRoom) -> Entry:
    entry = Entry(identifier, EntryKind.MESSAGE, title, role, parts=[room.markdown(text)])
    entry.is_folded = role in ("system", "developer") and len(text) > _LONG
    entry.summary = _line(text) if entry.is_folded else ""
    return entry


def _entry(identifier: str, item: Item, room: PageRoom) -> Entry:
    kind = _type(item)
    if kind == "message":
        return _message(identifier, item, room)
    if kind == "reasoning":
        return _reasoning(identifier, item, room)
    if kind == "tool_search_output":
        title = f"Loaded tools: {', '.join(_tool_names(item))}"[:_MAX_NAME]
        return Entry(identifier, EntryKind.RESULT, sendable(title), parts=[room.json(item)])
    if kind in item_types.OUTPUTS:
        parts = _result_parts(item, room)
        return Entry(identifier, EntryKind.RESULT, "Result of a tool call", parts=parts)
    if (
        kind in item_types.CALLS
        or kind in item_types.SERVER_CALLS
        or kind == item_types.APPROVAL_REQUEST
    ):
        return _call(identifier, item, room)
    if kind == item_types.APPROVAL_RESPONSE:
        title = "Approved a tool call" if item.get("approve") else "Refused a tool call"
        return Entry(identifier, EntryKind.OTHER, title, parts=[room.json(_arguments(item))])
    if kind == "mcp_list_tools":
        title = f"Tools of {str(item.get('server_label'))[:_MAX_NAME]}"
        return Entry(identifier, EntryKind.OTHER, sendable(title), parts=[room.json(item)])
    return Entry(identifier, EntryKind.OTHER, _words(kind), parts=[room.json(item)])


def _tool_names(item: Item) -> Iterator[str]:
    """The names in the output of a tool search, with the namespace or the server before them."""
    for tool in item.get("tools") or ():
        place = str(tool.get("server_label") or tool.get("name") or tool["type"])
        inner = tool.get("allowed_tools") or [each["name"] for each in tool.get("tools") or ()]
        yield from (f"{place}: {name}" for name in inner)
        if not inner:
            yield place


def _type(item: Mapping[str, Any]) -> str:
    return str(item.get("type") or "message")


def _message(identifier: str, item: Item, room: PageRoom) -> Entry:
    role = str(item.get("role") or "user")
    title = _ROLES.get(role, _words(role))
    content = item.get("content")
    if isinstance(content, str):
        return _text_entry(identifier, title, role, content, room)
    entry = Entry(identifier, EntryKind.MESSAGE, title, role, is_folded=False)
    entry.parts = _content_parts(content, room)
    return entry


def _reasoning(identifier: str, item: Item, room: PageRoom) -> Entry:
    entry = Entry(identifier, EntryKind.REASONING, "Reasoning")
    entry.parts = _content_parts(item.get("summary"), room)
    entry.parts += _content_parts(item.get("content"), room)
    entry.summary = next(filter(None, map(_line, written_texts(item))), "")
    if not entry.parts:
        sealed = bool(item.get("encrypted_content"))
        entry.summary = "sealed by the upstream" if sealed else "without a text"
    return entry


def written_texts(item: Item) -> Iterator[str]:
    """The texts of a message or a reasoning item, as they were written."""
    for name in ("summary", "content"):
        content = item.get(name)
        if isinstance(content, str):
            yield content
        for part in content if isinstance(content, list) else ():
            text = part.get("text") or part.get("refusal") if isinstance(part, Mapping) else None
            if isinstance(text, str):
                yield text


def _call(identifier: str, item: Item, room: PageRoom) -> Entry:
    names = filter(None, (item.get("server_label"), item.get("namespace"), item.get("name")))
    title = ": ".join(map(str, names))[:_MAX_NAME] or _words(_type(item).removesuffix("_call"))
    arguments = _arguments(item)
    text = arguments if isinstance(arguments, str) else one_line_json(arguments)
    entry = Entry(identifier, EntryKind.CALL, sendable(title), summary=_line(text))
    entry.parts.append(room.json(arguments, "Arguments"))
    for name, label in _RESULTS.items():
        if item.get(name):
            entry.parts.append(room.json(item[name], label))
    image = item.get("result")
    size = len(image) if isinstance(image, str) else marked_sizes([item])
    if size:
        entry.parts.append(Part(PartKind.IMAGE, f"Image, {_size(size)}", "Result"))
        entry.is_folded = False
    if item.get("status") in ("failed", "incomplete"):
        entry.title += f" ({item['status']})"
    return entry


def image_in(item: Item) -> tuple[bytes, str] | None:
    """The image that a call has made, and its media type; None: there is none that browsers show.
    May take a tenth of a second."""
    encoded = item.get("result")
    if _type(item) != IMAGE_CALL or not isinstance(encoded, str):
        return None
    try:
        content = base64.b64decode(encoded, validate=True)
    except ValueError:
        return None
    examination = Examination()
    examination.feed(content[:1024])
    kind = examination.kind()
    return (content, kind) if kind in IMAGES else None


def _arguments(item: Item) -> Any:
    text = item.get(item_types.ARGUMENT_FIELDS.get(_type(item), "arguments"))
    if isinstance(text, str):
        return text
    left_out = _NO_ARGUMENTS | _RESULTS.keys()
    found = {name: value for name, value in item.items() if name not in left_out}
    return found["action"] if found.keys() == {"action"} else found


def _result_parts(item: Item, room: PageRoom) -> list[Part]:
    output = item.get("output")
    if _is_known_part(output):  # a screenshot
        output = [output]
    if isinstance(output, list) and all(_is_known_part(part) for part in output):
        return _content_parts(output, room)
    return [room.json(output if output is not None else _arguments(item), "Result")]


def _is_known_part(part: object) -> bool:
    return isinstance(part, Mapping) and _type(part) in _TEXTS.keys() | _FILES.keys()


def _content_parts(content: object, room: PageRoom) -> list[Part]:
    """The parts of a message, a reasoning item or a result."""
    if not isinstance(content, list):
        return [] if content is None else [room.json(content)]
    parts = [shown for part in content[:_MAX_PARTS] for shown in _content_part(part, room)]
    if len(content) > _MAX_PARTS:
        parts.append(Part(PartKind.FILE, f"{len(content) - _MAX_PARTS} more parts", is_cut=True))
    return parts


def _content_part(part: Any, room: PageRoom) -> Iterator[Part]:
    kind = _type(part) if isinstance(part, Mapping) else ""
    if kind == "refusal":
        yield room.text(str(part.get("refusal") or ""), PartKind.REFUSAL, "Refusal")
    elif kind in _TEXTS:
        yield room.markdown(str(part.get(_TEXTS[kind]) or ""))
        for source in _sources(part.get("annotations")):
            yield room.text(f"Source: {source}", PartKind.FILE)
    elif kind in _FILES:
        yield room.text(f"{_FILES[kind]}: {_file_name(part)}", PartKind.FILE)
    else:
        yield room.json(part)


def _sources(annotations: object) -> list[str]:
    """What a text refers to, each once."""
    if not isinstance(annotations, list):
        return []
    names = [
        " ".join(str(each[name]) for name in ("title", "filename", "url") if each.get(name))
        for each in annotations
        if isinstance(each, Mapping)
    ]
    return [name[:_MAX_NAME] for name in dict.fromkeys(names) if name][:_MAX_SOURCES]


_FILES = {
    "input_image": "Image",
    "computer_screenshot": "Image",
    "input_file": "File",
    "input_audio": "Audio",
}
"""Types of content parts that are files -> what they are called."""


def _file_name(part: Mapping[str, Any]) -> str:
    """The name of a file, its id, or where it comes from. Its content is not shown."""
    for name in ("filename", "file_id"):
        if part.get(name):
            return str(part[name])[:_MAX_NAME]
    for name in ("image_url", "file_url", "file_data"):
        address = part.get(name)
        if isinstance(address, str) and address:
            return _place(address)
    return "inline"


def _place(address: str) -> str:
    """The type and size of inline data, or the address of a file without its parameters."""
    if address.startswith("data:"):
        return f"{address[5:60].partition(';')[0]}, {_size(len(address))}"
    if not address.startswith(("http://", "https://")):
        return f"inline, {_size(len(address))}"
    return address.partition("?")[0].partition("#")[0][:_MAX_NAME]


def _size(encoded: int) -> str:
    """`encoded`: characters of base64."""
    return f"about {encoded * 3 // 4096} KiB"


def _line(text: str) -> str:
    """The beginning of a text, in one line."""
    words = " ".join(text[: 4 * _MAX_SUMMARY].split())
    return sendable(words if len(words) <= _MAX_SUMMARY else f"{words[:_MAX_SUMMARY]}…")


def _words(name: str) -> str:
    """The name of a type or a role, in words."""
    return sendable(name.replace("_", " ")[:_MAX_NAME].capitalize())
