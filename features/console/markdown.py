"""Texts of models and clients as HTML: Markdown without HTML, images and addresses that do harm.

The parser makes HTML of nothing but its own tokens, and escapes every text. What is left to do:
an image of another site is a link to it, a link says nothing of this console to its site, headings
are below those of the page, and there is no `style`, which the policy of the page forbids.
"""

import time
from collections.abc import Iterator
from functools import cache

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
