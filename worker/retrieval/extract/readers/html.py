"""HTML: the text that a browser shows, and the title."""

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser

_HIDDEN = frozenset(("script", "style", "template", "noscript", "svg", "iframe"))
_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "details"),
        *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2"),
        *("h3", "h4", "h5", "h6", "head", "header", "hr", "li", "main", "nav", "ol", "option"),
        *("p", "pre", "section", "select", "summary", "table", "title", "tr", "ul"),
    )
)
"""Elements that begin and end a line."""
_CELLS = frozenset(("td", "th"))
_SPACE = re.compile(r"\s+")


def read_html(texts: Iterable[str]) -> Iterator[str]:
    """The visible text, a block a line. No tree is built: elements may be nested in any way."""
    page = _Page()
    for text in texts:
        page.feed(text)
        yield page.take()
    page.close()
    yield page.take()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._hidden: str | None = None
        self._hidden_depth = 0
        self._preformatted = 0
        self._end = "\n"
        """The last character of the text until now."""

    def take(self) -> str:
        """The text since the last call."""
        text = "".join(self._parts)
        self._parts.clear()
        return text

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        if self._hidden is not None:
            self._hidden_depth += tag == self._hidden
        elif tag in _HIDDEN:
            self._hidden, self._hidden_depth = tag, 1
        elif tag in _BLOCKS:
            self._break_line()
            self._preformatted += tag == "pre"
        elif tag in _CELLS and self._end != "\n":
            self._append("\t")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden is not None:
            self._hidden_depth -= tag == self._hidden
            if not self._hidden_depth:
                self._hidden = None
        elif tag in _BLOCKS:
            self._break_line()
            if tag == "pre" and self._preformatted:
                self._preformatted -= 1

    def handle_data(self, data: str) -> None:
        if self._hidden is not None:
            return
        text = data if self._preformatted else _SPACE.sub(" ", data)
        if self._end.isspace() and not self._preformatted:
            text = text.lstrip()
        if text:
            self._append(text)

    def _break_line(self) -> None:
        if self._end != "\n":
            self._append("\n")

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._end = text[-1]
