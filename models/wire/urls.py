"""The URLs in requests that this server or an upstream fetches, and where they are. Pure.

Data URLs hold their content and are none of these. Links in texts, in citations and in arguments
are content: nobody fetches them.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from models.wire.checks.parameters import NATIVE_ONLY_PARAMETERS
from models.wire.events import Item
from models.wire.item_types import OUTPUTS
from models.wire.tools import is_native_only, is_own_code_tool

_IS_URL = re.compile(
    r"(?!data:)(?:[a-z][a-z0-9+.-]{0,30}:|/?\\|//[a-z0-9+/= ]*[^a-z0-9+/= ])", re.IGNORECASE
)
"""The beginning of a URL that is not its own content: a scheme, or `//host`, also with backslashes.
Base64 has neither colons nor backslashes. It may begin with `//` (MP3 does), but has nothing of
what else is in a host or a path."""
_LONGEST = 8192
"""Characters of a URL that matter."""
_IGNORED = dict.fromkeys(map(ord, "\t\r\n"))
"""What readers of URLs leave out wherever it is. Before a URL they leave out these too:"""
_IGNORED_BEFORE = "".join(map(chr, range(0x21)))
_URL_NAMES = ("url", "uri")
_DATA_NAMES = frozenset(("data", "file", "file_data", "file_id", "image", "mask", "audio", "video"))
"""Fields that hold data or an id, in whose place some upstreams accept a URL."""
_CONTENT_NAMES = frozenset(
    (
        "annotations",
        "arguments",
        "function",
        "functions",
        "metadata",
        "parameters",
        "response_format",
    )
)
"""Fields whose inside nobody fetches: citations, calls, schemas."""


@dataclass(frozen=True, slots=True)
class UrlPlace:
    """A URL and where it is."""

    item: int
    """the index of its item"""
    path: str
    """its place in the item: `content[0].image_url`"""
    url: str
    is_fetched_here: bool
    """this server fetches it; else the upstream does"""

    def param(self, item: int, where: str = "input") -> str:
        """The place as an error names it, if the item is `where[item]`."""
        return f"{where}[{item}].{self.path}"


def item_urls(items: list[Item]) -> Iterator[UrlPlace]:
    """The URLs in checked items that this server or an upstream fetches, in order."""
    for index, item in enumerate(items):
        field = "output" if item["type"] in OUTPUTS else "content"
        content = item.get(field)
        if type(content) is list:
            for position, part in enumerate(content):
                yield from _part_urls(part, index, f"{field}[{position}].")
        elif type(content) is dict:
            yield from _part_urls(content, index, f"{field}.")


def _part_urls(part: dict[str, Any], item: int, prefix: str) -> Iterator[UrlPlace]:
    for name in ("image_url", "file_url", "file_data"):
        value = part.get(name)
        if type(value) is not str:
            continue
        if name == "file_url" or _is_fetched(name, value):
            yield UrlPlace(item, f"{prefix}{name}", value, name == "file_url")
    audio = part.get("input_audio")
    if type(audio) is dict and _is_fetched("data", audio["data"]):
        yield UrlPlace(item, f"{prefix}input_audio.data", audio["data"], False)


def parameter_urls(
    parameters: dict[str, Any], passthrough: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """The URLs in what an upstream gets as the client sent it, each with its place: in tools that
    it runs itself, and in the parameters that this server does not check: those in `passthrough`,
    and those that only a native upstream serves."""
    for index, tool in enumerate(parameters.get("tools", ())):
        if (is_native_only(tool) or tool["type"] == "shell") and not is_own_code_tool(tool):
            yield from nested_urls(tool, f"tools[{index}]")
    for name in dict.fromkeys((*passthrough, *NATIVE_ONLY_PARAMETERS)):
        if name in parameters:
            yield from nested_urls({name: parameters[name]}, "")


def body_urls(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The URLs in the body of a request that an upstream gets unchanged, each with its place."""
    if body.get("modality", "text") != "text":
        # Infinity takes addresses of images and of audio as plain inputs.
        body = {**body, "image": body.get("input")}
    yield from nested_urls(body, "")


def nested_urls(
    value: Any, where: str, skipped: Collection[str] = _CONTENT_NAMES
) -> Iterator[tuple[str, str]]:
    """The URLs in unchecked JSON, each with its place: every string in a field or a list that is
    called `url` or `uri` or ends with that, and every URL in one for data."""
    if type(value) is dict:
        for name, inner in value.items():
            place = f"{where}.{name}" if where else name
            if type(inner) is str:
                if _is_fetched(name, inner):
                    yield place, inner
            elif name not in skipped:
                if type(inner) is list:
                    yield from _listed_urls(name, inner, place)
                yield from nested_urls(inner, place, skipped)
    elif type(value) is list:
        for index, inner in enumerate(value):
            if type(inner) is dict or type(inner) is list:
                yield from nested_urls(inner, f"{where}[{index}]", skipped)


def _listed_urls(name: str, values: list[Any], where: str) -> Iterator[tuple[str, str]]:
    """The URLs among the strings of a list, whose name may be a plural: `images`, `image_urls`."""
    singular = name.removesuffix("s")
    for index, value in enumerate(values):
        if type(value) is str and _is_fetched(singular, value):
            yield f"{where}[{index}]", value


def _is_fetched(name: str, value: str) -> bool:
    """Whether the string in a field of this name is a URL that is fetched."""
    if name.lower().endswith(_URL_NAMES):
        return value[:5].lower() != "data:"
    if name not in _DATA_NAMES:
        return False
    start = value[:_LONGEST].translate(_IGNORED).lstrip(_IGNORED_BEFORE)
    return _IS_URL.match(start) is not None
