"""How much of texts of models and clients a page shows: every part, and all of them together, are
bounded in characters, in nesting, and in the time to render them.

Texts of models and clients as HTML: Markdown without HTML, images and addresses that do harm.

The parser makes HTML of nothing but its own tokens, and escapes every text. What is left to do:
an image of another site is a link to it, a link says nothing of this console to its site, headings
are below those of the page, and there is no `style`, which the policy of the page forbids.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import orjson
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup

_SCHEMES = ("https://", "http://", "mailto:")
_LINK = {"rel": "noopener noreferrer nofollow", "target": "_blank"}
_DEADLINE = "deadline"
"""In the parser's environment: on the clock of the thread."""
_LEVELS_ABOVE = 3
"""Headings that the page has around a text."""


class _TooSlowError(Exception):
    """The text takes longer than it may."""


def render_markdown(text: str, seconds: float) -> Markup | None:
    """The HTML of a text. A line break is one in the page, too, as chats show it. None: it takes
    more than about so many seconds of this thread's processor, because somebody has written it so
    that it does."""
    try:
        html = _parser().render(text, {_DEADLINE: time.thread_time() + seconds})
    except _TooSlowError:
        return None
    return Markup(html)  # noqa: S704  (the parser escapes every text)


class _Parser(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802
        """Whether an address may be a link; else the text stays as it was written."""
        return url.strip().lower().startswith(_SCHEMES)


@cache
def _parser() -> MarkdownIt:
    # "commonmark" ends at 20 levels of nesting.
    parser = _Parser("commonmark", {"html": False, "breaks": True, "langPrefix": ""})
    parser.enable(["table", "strikethrough"])
    parser.core.ruler.push("own_page", _adapt)
    # These are called for every line, and for every character that may begin something.
    parser.block.ruler.before("code", "deadline", _end_late_block)
    parser.inline.ruler.before("text", "deadline", _end_late_line)
    return parser


def _end_late_block(state: StateBlock, _first: int, _last: int, _silent: bool) -> bool:
    return _is_no_rule(state.env[_DEADLINE])


def _end_late_line(state: StateInline, _silent: bool) -> bool:
    return _is_no_rule(state.env[_DEADLINE])


def _is_no_rule(deadline: float) -> bool:
    if time.thread_time() > deadline:
        raise _TooSlowError
    return False


def _adapt(state: StateCore) -> None:
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + _LEVELS_ABOVE)}"
        elif token.type in ("th_open", "td_open") and "style" in token.attrs:
            alignment = str(token.attrs.pop("style")).removeprefix("text-align:")
            token.attrs["class"] = f"align-{alignment}"
        elif token.type == "fence":
            # Its first word would be a class.
            token.info = ""
        elif token.children:
            token.children = list(_adapted(token.children))


def _adapted(tokens: list[Token]) -> Iterator[Token]:
    """The tokens of a line, with links instead of images."""
    depth = 0
    for token in tokens:
        if token.type == "image":
            yield from _named_image(token, is_linked=depth > 0)
            continue
        if token.type == "link_open":
            depth += 1
            token.attrs |= _LINK | {"title": str(token.attrs["href"])}
        elif token.type == "link_close":
            depth -= 1
        yield token


def _named_image(image: Token, *, is_linked: bool) -> Iterator[Token]:
    """The name of an image, as a link to it. Inside of a link it is only a text."""
    text = Token("text", "", 0, content=f"Image: {image.content or 'without a name'}")
    if is_linked:
        yield text
        return
    address = str(image.attrs["src"])
    link = {"href": address, "title": address}
    yield Token("link_open", "a", 1, attrs={**link, **_LINK})
    yield text
    yield Token("link_close", "a", -1)


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
