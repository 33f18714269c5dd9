"""HTML: the text that a browser shows, and the title."""

import re
from collections.abc import Iterable, Iterator
from html import unescape
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
_OPEN = re.compile(r"<[a-zA-Z/!?]")
_SPACE = re.compile(r"\s+")


def read_html(texts: Iterable[str]) -> Iterator[str]:
    """The visible text, a block a line. No tree is built: elements may be nested in any way."""
    page = _PageParser()
    waiting: list[str] = []
    size = 0
    for text in texts:
        waiting.append(text)
        size += len(text)
        # The parser begins again with what is open. It gets as much as that at least: so the work
        # grows with the size of the page, not with its square.
        if size >= len(page.rawdata):
            page.feed("".join(waiting))
            waiting, size = [], 0
            yield page.take()
    page.feed("".join(waiting))
    page.end()
    yield page.take()


class _PageParser(HTMLParser):
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

    def end(self) -> None:
        """The end of the page. A tag or comment that is still open is not shown, as in a browser;
        the parser's own end would look for its end from each `<` on."""
        rest, self.rawdata = self.rawdata, ""
        if self.cdata_elem is None and not _OPEN.match(rest):
            self.handle_data(unescape(rest))

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
