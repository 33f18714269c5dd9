"""The index of tools: what it finds, and what hostile lists and queries cost."""

import pytest

from features.tool_search.index import Document, ToolIndex, list_hash, unit, words
from tests.support.api import JSON
from tests.support.many_tools import SERVERS, requests, server_tools

ALL = [
    Document.of(label, tool, tool["inputSchema"])
    for label in SERVERS
    for tool in server_tools(label)
]


def test_the_right_tool_is_among_the_found_ones_for_95_percent_of_200_requests() -> None:
    index = ToolIndex(ALL)
    missed = [
        (label, name, query)
        for label, name, query in requests()
        if (label, name) not in {(ALL[at].place, ALL[at].name) for at in index.find(query, 8)}
    ]
    assert len(requests()) == 200
    assert len(missed) <= 10, missed


def test_words_are_compared_without_case_joints_and_endings() -> None:
    assert words("createPullRequests") == words("create pull_request")
    assert words("HTTPServer deleting") == ["http", "server", "delete"]


def test_embeddings_find_what_words_do_not() -> None:
    index = ToolIndex([Document("", "a", "x", ()), Document("", "b", "y", ())])
    index.vectors = [unit([1.0, 0.0]), unit([0.0, 2.0])]
    assert index.find("nothing", 1) == []
    assert index.find("nothing", 1, unit([0.1, 1.0])) == [1]


@pytest.mark.parametrize("query", ["(a+)+$" * 10_000, "", "\\", "\0", "💥" * 5000, "a" * 1_000_000])
def test_a_query_is_only_words(query: str) -> None:
    assert len(ToolIndex(ALL[:64]).find(query, 8)) <= 8


def test_only_the_start_of_a_long_text_counts() -> None:
    schema: JSON = {"properties": {f"p{number}": {} for number in range(100_000)}}
    document = Document.of("x", {"name": "n", "description": "d" * 10_000_000}, schema)
    assert len(document.text) < 3000
    assert len(document.parameters) == 64


def test_lists_that_differ_have_different_hashes() -> None:
    assert list_hash(ALL) == list_hash(list(ALL))
    assert list_hash(ALL) != list_hash(ALL[1:])
