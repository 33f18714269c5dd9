"""What models and clients have written becomes HTML that can do nothing."""

from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.console.page_room import render_markdown

_SECONDS = 60.0
_TAGS = {
    *("a", "blockquote", "br", "code", "em", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s"),
    *("strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
_ATTRIBUTES = {"href", "title", "rel", "target", "start", "class"}
_CLASSES = {"align-left", "align-right", "align-center"}
_PIECES = st.sampled_from(
    [
        *("<script>", "</script>", "<img src=x onerror=alert(1)>", "<a href=", '"', "'", ">", "`"),
        *("[a](", "![b](", "[c]: ", "javascript:", "data:text/html,", "https://x.example/", ")"),
        *("\n", "\n\n", "    ", "> ", "- ", "1. ", "# ", "```", "|a|b|\n|:-|-:|\n", "|", "**"),
        *("~~", "_", "&lt;", "&#106;", "&#x0;", "\\", "\x00", "\u202e", "style=", "<!--", "x"),
    ]
)


class _Checked(HTMLParser):
    """Collects what is not allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _TAGS:
            self.faults.append(tag)
        for name, value in attrs:
            is_address = name == "href"
            is_safe = (value or "").startswith(("https://", "http://", "mailto:"))
            if name not in _ATTRIBUTES or (is_address and not is_safe):
                self.faults.append(f"{tag} {name}={value}")
            if name == "class" and value not in _CLASSES:
                self.faults.append(f"{tag} class={value}")
        if tag == "a" and ("rel", "noopener noreferrer nofollow") not in attrs:
            self.faults.append("a link without rel")

    def handle_comment(self, data: str) -> None:
        self.faults.append(f"comment {data}")


def _faults(text: str) -> list[str]:
    html = render_markdown(text, _SECONDS)
    assert html is not None
    checked = _Checked()
    checked.feed(html)
    checked.close()
    return checked.faults


@given(st.lists(_PIECES | st.text(max_size=5), max_size=30).map("".join))
@settings(max_examples=150, deadline=None)
def test_no_text_makes_anything_but_plain_elements(text: str) -> None:
    assert not _faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<svg/onload=alert(1)>",
        "[a](javascript:alert(1))",
        "[a](JaVaScRiPt:alert(1))",
        "[a](&#106;avascript:alert(1))",
        "[a](java\tscript:alert(1))",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "[a](vbscript:x)",
        "[a](//evil.example)",
        "[a](/console/logout)",
        '[a](https://x.example "\\"onmouseover=alert(1)")',
        "<https://x.example/\"onclick='alert(1)'>",
        "[a]: javascript:alert(1)\n\n[a]",
        '```"><script>alert(1)</script>\nx\n```',
        "![a](https://x.example/a.png)",
        "[![a](https://x.example/a.png)](https://x.example)",
        "![a](data:image/svg+xml;base64,PHN2Zz4=)",
        "| a |\n|:-:|\n| <b onclick=x> |",
    ],
)
def test_attacks_stay_texts(text: str) -> None:
    assert not _faults(text)


def test_an_image_of_another_site_is_a_link_with_its_name() -> None:
    html = render_markdown("![A cat](https://x.example/cat.png?secret=1)", _SECONDS)
    assert html is not None
    assert "<img" not in html
    assert ">Image: A cat</a>" in html
    linked = render_markdown("[![A cat](https://x.example/c.png)](https://y.example/)", _SECONDS)
    assert linked is not None
    assert linked.count("<a ") == 1
    assert "Image: A cat" in linked


def test_what_models_write_is_rendered() -> None:
    text = "# Title\n\nA *b* **c** `d` ~~e~~\nnext\n\n- f\n\n```py\nx < 1\n```\n\n|g|\n|-:|\n|1|"
    html = render_markdown(text, _SECONDS)
    assert html is not None
    for piece in (
        "<h4>Title</h4>",
        "<em>b</em> <strong>c</strong> <code>d</code> <s>e</s><br />",
        "<li>f</li>",
        "<pre><code>x &lt; 1",
        '<td class="align-right">1</td>',
    ):
        assert piece in html


@pytest.mark.parametrize("text", ["[" * 20_000, "![" * 10_000, "> " * 20 + "a\n" + "> a\n" * 4000])
def test_a_text_that_takes_too_long_is_not_rendered(text: str) -> None:
    assert render_markdown(text, 0.001) is None


def test_nesting_ends() -> None:
    for text in ("> " * 500 + "a", "".join("  " * n + "- a\n" for n in range(300))):
        html = render_markdown(text, _SECONDS)
        assert html is not None
        assert html.count("<blockquote") + html.count("<ul") <= 40
