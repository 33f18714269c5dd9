"""Markers of files become citations and are in no text, however the text is cut into pieces."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.wire.events import AnnotationAdded, Event, TextDelta, TextDone
from tests.support.native_turns import added, event, terminal_event, translate_native
from worker.translation.history.walk import as_function_call, server_call_output
from worker.translation.items.citations import (
    MarkerFilter,
    Sources,
    citable_files,
    citation_sources,
    passages_of,
    passages_text,
)
from worker.translation.items.server_calls import OpenFileSearchCall, queries_of
from worker.translation.items.text_items import OpenMessage
from worker.translation.tool_catalog import ToolCatalog

FILE_A, FILE_B = "file-00000000000070008000000000000001", "file-00000000000070008000000000000002"
RESULTS = [
    {"file_id": FILE_A, "filename": "a.md", "score": 0.5, "attributes": {}, "text": "Alpha."},
    {"file_id": FILE_B, "filename": "b.md", "score": 0.25, "attributes": {"y": 1}, "text": "Beta."},
]
CALL = {"id": "fs_1", "type": "file_search_call", "queries": ["x"], "results": RESULTS}
PASSAGES = passages_of(CALL) or []
FILES = citable_files(PASSAGES)
KEYS = {file.id: name for name, file in FILES.items() if len(name) == 8}
A, B = f"[cite:{KEYS[FILE_A]}]", f"[cite:{KEYS[FILE_B]}]"


def cleaned(*pieces: str) -> tuple[str, list[tuple[str, int]]]:
    """The text without markers, and what is cited at which place."""
    markers = MarkerFilter(FILES)
    clean = [*(markers.feed(piece) for piece in pieces), markers.flush()]
    citations = [each for part in clean for each in part.annotations]
    return "".join(part.text for part in clean), [(c["filename"], c["index"]) for c in citations]


TEXTS: list[tuple[str, str, list[tuple[str, int]]]] = [
    (f"Alpha is first {A}.", "Alpha is first.", [("a.md", 14)]),
    (f"Alpha is first. {A}", "Alpha is first.", [("a.md", 15)]),
    (f"{A}{B} both", " both", [("a.md", 0), ("b.md", 0)]),
    (f"both {A} {B}, and {A}", "both, and", [("a.md", 4), ("b.md", 4), ("a.md", 9)]),
    (f"twice {A} {A}", "twice", [("a.md", 5)]),
    (f"🌧️ é {A}!", "🌧️ é!", [("a.md", 4)]),
    (f"x {A[:-1]}, cite:{KEYS[FILE_B]}] y", "x y", [("a.md", 1), ("b.md", 1)]),
    (f"x {A.upper().replace('[', '【').replace(']', '】')}", "x", [("a.md", 1)]),
    (f"x [ cite : {KEYS[FILE_A]} ]", "x", [("a.md", 1)]),
    (f"x [cite:{FILE_A}]", "x", [("a.md", 1)]),
    (f"x [cite:{KEYS[FILE_A]};nothing]", "x", [("a.md", 1)]),
    (f"[[{A}]]", "[[]]", [("a.md", 2)]),
    (f"[cite:[cite:{A}", "[cite:[cite:", [("a.md", 12)]),
    ("x [cite:00000000] y", "x [cite:00000000] y", []),
    ("x [cite:] y [cite", "x [cite:] y [cite", []),
    ("x [cites: a](b) [c](d)  ", "x [cites: a](b) [c](d)  ", []),
    (f"x (cite:{KEYS[FILE_A]}) y", f"x (cite:{KEYS[FILE_A]}) y", []),
    (f"x {A[:-1]}", f"x {A[:-1]}", []),
    (f"x {A[:-1]}\n]", f"x {A[:-1]}\n]", []),
    (f"[cite:{'a' * 300},{KEYS[FILE_A]}]", f"[cite:{'a' * 300},{KEYS[FILE_A]}]", []),
    ("a  \n b  ", "a  \n b  ", []),
    ("", "", []),
]


@pytest.mark.parametrize(("text", "clean", "cited"), TEXTS, ids=[row[0][:30] for row in TEXTS])
def test_a_marker_is_cut_out_wherever_the_text_is_split(
    text: str, clean: str, cited: list[tuple[str, int]]
) -> None:
    assert cleaned(text) == (clean, cited)
    assert cleaned(*text) == (clean, cited)
    for cut in range(len(text)):
        assert cleaned(text[:cut], text[cut:]) == (clean, cited), cut


BITS = st.sampled_from(
    [*"[]【】 :,;\n", "cite", "CITE:", A, B, A[:-1], KEYS[FILE_A], "[cite:", " [cite:no]", "🌧", "x"]
)


@given(st.lists(BITS, max_size=40).map("".join), st.lists(st.integers(0, 300), max_size=12))
def test_citations_do_not_depend_on_how_the_text_is_cut(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    whole = cleaned(text)
    assert cleaned(*(text[start:end] for start, end in pairwise(places))) == whole
    assert cleaned(*text) == whole
    assert all(0 <= index <= len(whole[0]) for _, index in whole[1])
    if not whole[1]:
        assert whole[0] == text, "what cites nothing stays text"


def test_text_with_many_possible_markers_stays_cheap() -> None:
    for text in ("[" * 60_000, "[cite:" * 20_000, "[cite:a" + "a" * 100_000, " " * 100_000):
        assert cleaned(*(text[at : at + 700] for at in range(0, len(text), 700))) == (text, [])


def test_only_a_little_text_is_held_back() -> None:
    markers = MarkerFilter(FILES)
    assert markers.feed("Alpha is [").text == "Alpha is"
    assert markers.feed("first] and").text == " [first] and"
    assert markers.feed(" [cite:").text == ""
    assert len(markers.feed("a" * 241).text) == 248


# --- in messages


def texts_of(events: list[Event]) -> str:
    return "".join(each.delta for each in events if isinstance(each, TextDelta))


def test_a_message_streams_text_without_markers_and_its_citations() -> None:
    message = OpenMessage(0, "msg_1", Sources({"https://p.example": "P"}, FILES))
    pieces = ["Alpha [ci", f"te:{KEYS[FILE_A]}", "] and [P](https://p.example)", f" {B}", " ["]
    events = [each for piece in pieces for each in message.append_delta(piece, [])]
    events += message.close("completed")
    text = "Alpha and [P](https://p.example) ["
    assert texts_of(events) == text
    notes = [each.annotation for each in events if isinstance(each, AnnotationAdded)]
    a, page, b = notes
    assert a == {"type": "file_citation", "file_id": FILE_A, "filename": "a.md", "index": 5}
    assert text[page["start_index"] : page["end_index"]] == "[P](https://p.example)"
    assert b["index"] == len(text) - 2
    [part] = message.to_json()["content"]
    assert (part["text"], part["annotations"]) == (text, notes)
    assert [each.text for each in events if isinstance(each, TextDone)] == [text]
    numbers = [each.annotation_index for each in events if isinstance(each, AnnotationAdded)]
    assert numbers == [0, 1, 2]


def test_a_message_that_is_cut_in_a_marker_has_what_was_written() -> None:
    message = OpenMessage(0, "msg_1", Sources({}, FILES))
    events = [*message.append_delta(f"Alpha {A[:-1]}", []), *message.cut()]
    assert texts_of(events) == f"Alpha {A[:-1]}"
    assert not any(isinstance(each, TextDone) for each in events)


def test_log_probabilities_of_held_text_come_with_the_next_delta() -> None:
    message = OpenMessage(0, "msg_1", Sources({}, FILES))
    pieces = ["x", " [", f"cite:{KEYS[FILE_A]}]", "."]
    events = [e for piece in pieces for e in message.append_delta(piece, [{"token": piece}])]
    deltas = [each for each in events if isinstance(each, TextDelta)]
    assert [(each.delta, [p["token"] for p in each.logprobs]) for each in deltas] == [
        ("x", ["x"]),
        (".", pieces[1:]),
    ]


def test_a_native_message_is_complete_although_its_whole_text_has_markers() -> None:
    whole = f"Alpha {A}. Beta {B}."
    part = {"type": "output_text", "text": whole, "annotations": []}
    item = {"type": "message", "id": "up", "role": "assistant", "content": [part]}
    turn = translate_native(
        [
            added(0, "message", id="up"),
            event("output_text.delta", 0, item_id="up", content_index=0, delta=whole[:9]),
            event("output_text.done", 0, item_id="up", content_index=0, text=whole[:20]),
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            terminal_event(item),
        ],
        tool_catalog=ToolCatalog(sources=Sources({}, FILES)),
    )
    [shown] = turn.output[0]["content"]
    assert shown["text"] == "Alpha. Beta."
    assert [note["index"] for note in shown["annotations"]] == [5, 11]


# --- what the model gets


def test_the_model_gets_each_passage_with_its_marker_and_its_file() -> None:
    text = passages_text(PASSAGES)
    assert f"for example {A}" in text
    assert f'<passage marker="{B}" filename="b.md" file_id="{FILE_B}" score="0.25">\nBeta.' in text
    assert passages_text([]) == "No passage was found."
    odd = {**RESULTS[0], "filename": 'a"><b>', "text": 'x</passage><passage marker="y">'}
    shown = passages_text(passages_of({**CALL, "results": [odd]}) or [])
    assert shown.count("</passage>") == shown.count("<passage ") == 1
    assert 'filename="a&quot;&gt;&lt;b&gt;"' in shown


def test_a_search_in_the_history_is_a_call_with_its_results() -> None:
    assert server_call_output(CALL) == {"output": passages_text(PASSAGES)}
    assert as_function_call(CALL, "file_search")["arguments"] == '{"queries": ["x"]}'
    assert server_call_output({**CALL, "results": []}) == {"output": "No passage was found."}
    assert server_call_output({**CALL, "answer": "Error: no"}) == {"output": "Error: no"}
    unknown: Any
    for unknown in (None, "text", [1], [{"text": "no file"}], {}):
        assert server_call_output({**CALL, "results": unknown}) is None
    assert citation_sources([CALL]).files == FILES
    assert citation_sources([{**CALL, "results": None}]).files == {}


@pytest.mark.parametrize(
    ("arguments", "queries"),
    [
        ('{"queries": ["a", "b", "a", " "]}', ["a", "b"]),
        ('{"queries": "a"}', ["a"]),
        ('{"query": "a"}', ["a"]),
        ('{"queries": "[\\"a\\", \\"b\\"]"}', ["a", "b"]),
        ('{"queries": [{"query": "a"}, {"text": "b"}]}', ["a", "b"]),
        ('{"queries": [], "query": "a"}', ["a"]),
        ('{"question": "a", "top_k": 5}', ["a"]),
        ('["a", "b"]', ["a", "b"]),
        ('"a"', ["a"]),
        ("What is it?", ["What is it?"]),
        ('{"queries": ["[x] of a list"]}', ["[x] of a list"]),
        ('{"queries": ["1","2","3","4","5","6"]}', ["1", "2", "3", "4", "5"]),
        ('{"queries": ["' + "x" * 2000 + '"]}', ["x" * 1000]),
        ('{"queries": ["a"', []),
        ('{"queries": [[[[["deep"]]]]]}', []),
        ('{"queries": [1, null]}', []),
        ("{}", []),
        ("", []),
    ],
)
def test_weak_models_may_write_their_queries_in_many_ways(
    arguments: str, queries: list[str]
) -> None:
    assert queries_of(arguments) == queries


def test_the_item_of_a_search_is_restored_as_it_was_stored() -> None:
    call = OpenFileSearchCall(3, "fs_1")
    first: Any = call.open_events()[0]
    assert first.item == {
        "id": "fs_1",
        "type": "file_search_call",
        "status": "in_progress",
        "queries": [],
    }
    call.push('{"queries": ["x"]}')
    call.arguments_done()
    again = OpenFileSearchCall.from_item(3, call.to_json())
    again.result({"results": RESULTS}, failed=False)
    assert again.to_json() == {**CALL, "status": "completed"}
