"""Markdown links to search results become citations, however the text is cut into pieces."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.translation.items.citations import CitationFinder, citation_sources

SOURCES = {"https://a.example/x": "A", "https://b.example/(1)": "B", "https://c.example": ""}


def annotations_of(*pieces: str) -> list[dict[str, Any]]:
    citations = CitationFinder(SOURCES)
    return [note for piece in pieces for note in citations.find(piece)]


TEXTS: list[tuple[str, list[str]]] = [
    ("See [A](https://a.example/x).", ["[A](https://a.example/x)"]),
    ("([A](https://a.example/x))", ["[A](https://a.example/x)"]),
    (
        "[A](https://a.example/x/) [A](<https://a.example/x>)",
        ["[A](https://a.example/x/)", "[A](<https://a.example/x>)"],
    ),
    ('[A](https://a.example/x "the title")', ['[A](https://a.example/x "the title")']),
    ("[](https://a.example/x)", ["[](https://a.example/x)"]),
    ("[[1]](https://a.example/x)", ["[[1]](https://a.example/x)"]),
    ("[[1] and [2]](https://a.example/x)", ["[[1] and [2]](https://a.example/x)"]),
    ("[a [b](https://a.example/x) c](https://c.example)", ["[b](https://a.example/x)"]),
    (
        "[B](https://b.example/(1)) and [C](https://c.example/)",
        ["[B](https://b.example/(1))", "[C](https://c.example/)"],
    ),
    ("🌧️ é [ü 🌞](https://a.example/x)", ["[ü 🌞](https://a.example/x)"]),
    ("[[[[[[[[[A](https://a.example/x)", ["[A](https://a.example/x)"]),
    ("[A](https://a.example/x", []),
    ("[A] (https://a.example/x)", []),
    ("[A\nB](https://a.example/x)", []),
    ("[A](https://a.example/x\n)", []),
    ("[A](https://elsewhere.example/)", []),
    ("[A](javascript:alert(1))", []),
    ("https://a.example/x", []),
    ("[A](https://b.example/((1)))", []),
    ("[" + "x" * 5000 + "](https://a.example/x)", []),
    (")" * 100, []),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS, ids=[row[0][:40] for row in TEXTS])
def test_links_to_search_results_are_citations(text: str, expected: list[str]) -> None:
    for pieces in ([text], list(text), [text[: len(text) // 2], text[len(text) // 2 :]]):
        assert [
            text[note["start_index"] : note["end_index"]] for note in annotations_of(*pieces)
        ] == expected


def test_a_source_without_a_title_gets_the_link_text() -> None:
    assert [
        note["title"]
        for note in annotations_of("[A](https://a.example/x) [words](https://c.example)")
    ] == ["A", "words"]


BITS = st.sampled_from(
    [
        "[",
        "]",
        "(",
        ")",
        "\n",
        " ",
        "<",
        ">",
        '"',
        "a",
        "https://a.example/x",
        "](https://a.example/x)",
        "[A](https://b.example/(1))",
        "🌧",
    ]
)


@given(st.lists(BITS, max_size=40).map("".join), st.lists(st.integers(0, 300), max_size=12))
def test_citations_do_not_depend_on_how_the_text_is_cut(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(places)]
    whole = annotations_of(text)
    assert annotations_of(*pieces) == whole == annotations_of(*text)
    assert all(
        text[note["start_index"]] == "[" and text[note["end_index"] - 1] == ")" for note in whole
    )


def test_text_with_many_possible_links_stays_cheap() -> None:
    for text in (
        "[" * 60_000,
        "[a](" * 20_000,
        "[[a]" * 20_000,
        "](https://a" * 10_000,
        "[a](https://a(" * 10_000,
    ):
        assert annotations_of(*(text[at : at + 7] + ")" for at in range(0, len(text), 700))) == []


def test_sources_are_the_results_of_searches() -> None:
    answer = '{"results": [{"title": "T", "url": "https://a/", "content": "c"}], "note": ""}'
    history = [
        {"type": "web_search_call", "answer": answer},
        {"type": "web_search_call", "answer": "Error: no"},
        {"type": "web_search_call", "answer": answer[:40]},
        {"type": "web_search_call"},
        {"type": "mcp_call", "answer": answer.replace("https://a/", "https://b/")},
    ]
    assert citation_sources(history).pages == {"https://a": "T"}
