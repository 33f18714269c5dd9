"""How much of texts of models and clients a page shows: every part, and all of them together, are
bounded in characters, in nesting, and in the time to render them."""

import json
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson
from markupsafe import Markup

from features.console.markdown import render_markdown

MAX_PART = 20_000
"""Characters of a part that are shown."""
_MAX_CROWDED_PART = 400
"""The same, when the page is full."""
_MAX_PAGE = 300_000
"""Characters of all parts after which the page is full."""
_MARKDOWN_SECONDS = 0.05
"""Of the processor, for all Markdown of a page. Texts after that are shown as they were written."""
_MAX_INDENTED = 100_000
"""Characters of JSON that are read to indent them."""


class PartKind(StrEnum):
    """How a part is shown. Also its class in the style sheet."""

    MARKDOWN = "markdown"
    TEXT = "text"
    CODE = "code"
    REFUSAL = "refusal"
    FILE = "file"
    """the name of a file or an image"""
    IMAGE = "image"
    """what is said of an image, which has a page of its own"""


@dataclass(frozen=True, slots=True)
class Part:
    """A text, or the name of a file."""

    kind: PartKind
    text: str | Markup
    label: str = ""
    is_cut: bool = False


class PageRoom:
    """What is left of one page for texts."""

    def __init__(self) -> None:
        self._characters = _MAX_PAGE
        self._seconds = _MARKDOWN_SECONDS

    def text(self, text: str, kind: PartKind = PartKind.TEXT, label: str = "") -> Part:
        """As much of a text as there is room for."""
        most = MAX_PART if self._characters > 0 else _MAX_CROWDED_PART
        shown = sendable(text[:most])
        self._characters -= len(shown)
        return Part(kind, shown, label, is_cut=len(text) > most)

    def markdown(self, text: str) -> Part:
        """The same, rendered if there is time."""
        part = self.text(text)
        if self._seconds <= 0:
            return part
        started = time.thread_time()
        html = render_markdown(part.text, self._seconds)
        self._seconds -= time.thread_time() - started
        if html is None:
            return part
        # With many marks, it is a multiple of the text.
        self._characters -= max(0, len(html) - len(part.text))
        return Part(PartKind.MARKDOWN, html, is_cut=part.is_cut)

    def json(self, value: Any, label: str = "") -> Part:
        """A value, or a text that contains one, with its lines indented."""
        return self.text(pretty_json(value), PartKind.CODE, label)


def sendable(text: str) -> str:
    """A text without halves of characters, which JSON may have and UTF-8 may not."""
    return text.encode(errors="replace").decode()


def pretty_json(value: Any) -> str:
    """JSON to read. A text that has none, or a large one, stays as it is."""
    found = value
    if isinstance(value, str):
        if len(value) > _MAX_INDENTED:
            return value
        try:
            found = orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    try:
        return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()
    except TypeError:
        # Large numbers, or more than 254 levels.
        return one_line_json(found)


def one_line_json(value: Any) -> str:
    """JSON in one line."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "It is nested too deeply to be shown."
