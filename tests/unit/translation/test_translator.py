"""Chunks in, events out, vendor by vendor."""

import random
from typing import Any

import pytest

from models.errors import LimitReached
from models.wire.token_counts import add_usage
from tests.support.api import JSON
from tests.support.chat_turns import call, calls, counter, delta, finish, translate
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.upstream_events import CallDelta, ChatChunk

EVENTS = [
    pytest.param(
        [delta(role="assistant", content=""), delta(content="Hel"), delta(content="lo"), finish()],
        [
            "0 +message",
            "0.0 +output_text",
            "0.0 'Hel'",
            "0.0 'lo'",
            "0.0 ='Hello'",
            "0.0 -output_text",
            "0 -message completed",
        ],
        id="a message",
    ),
    pytest.param(
        [delta(refusal="I "), delta(refusal="can't"), finish()],
        [
            "0 +message",
            "0.0 +refusal",
            "0.0 'I '",
            '0.0 "can\'t"',
            '0.0 ="I can\'t"',
            "0.0 -refusal",
            "0 -message completed",
        ],
        id="a refusal",
    ),
    pytest.param(
        [delta(content="Well"), delta(refusal="no"), finish()],
        [
            "0 +message",
            "0.0 +output_text",
            "0.0 'Well'",
            "0.0 ='Well'",
            "0.0 -output_text",
            "0.1 +refusal",
            "0.1 'no'",
            "0.1 ='no'",
            "0.1 -refusal",
            "0 -message completed",
        ],
        id="a refusal is another part of the open message",
    ),
    pytest.param(
        [delta(reasoning="h"), delta(reasoning="m"), delta(content="Hi"), finish()],
        [
            "0 +reasoning",
            "0.0 +reasoning_text",
            "0.0 'h'",
            "0.0 'm'",
            "0.0 ='hm'",
            "0.0 -reasoning_text",
            "0 -reasoning completed",
            "1 +message",
            "1.0 +output_text",
            "1.0 'Hi'",
            "1.0 ='Hi'",
            "1.0 -output_text",
            "1 -message completed",
        ],
        id="reasoning closes when the text begins",
    ),
    pytest.param(
        [
            calls(call(0, "call_a", "look", "")),
            calls(call(0, arguments='{"a"')),
            calls(call(0, arguments=":1}")),
            finish("tool_calls"),
        ],
        ["0 +look/call_a", "0 '{\"a\"'", "0 ':1}'", "0 ='{\"a\":1}'", "0 -look/call_a completed"],
        id="a call",
    ),
    pytest.param(
        [
            delta(content="Let me look."),
            calls(call(0, "call_a", "look", "{}")),
            finish("tool_calls"),
        ],
        [
            "0 +message",
            "0.0 +output_text",
            "0.0 'Let me look.'",
            "0.0 ='Let me look.'",
            "0.0 -output_text",
            "0 -message completed",
            "1 +look/call_a",
            "1 '{}'",
            "1 ='{}'",
            "1 -look/call_a completed",
        ],
        id="the message closes when a call begins",
    ),
    pytest.param(
        [
            calls(call(0, "call_a", "look", "")),
            calls(call(1, "call_b", "hear", "")),
            calls(call(1, arguments="{")),
            calls(call(0, arguments="{")),
            calls(call(1, arguments="}"), call(0, arguments="}")),
            finish("tool_calls"),
        ],
        [
            "0 +look/call_a",
            "0 '{'",
            "0 '}'",
            "0 ='{}'",
            "0 -look/call_a completed",
            "1 +hear/call_b",
            "1 '{'",
            "1 '}'",
            "1 ='{}'",
            "1 -hear/call_b completed",
        ],
        id="interleaved calls come one after the other",
    ),
    pytest.param(
        [calls(call(0, "call_a", "ping", "")), finish("tool_calls")],
        ["0 +ping/call_a", "0 '{}'", "0 ='{}'", "0 -ping/call_a completed"],
        id="a call without arguments gets an empty object, as a delta too",
    ),
    pytest.param(
        [
            delta(
                content="See",
                annotations=[
                    {"type": "url_citation", "url_citation": {"url": "https://x", "title": "X"}}
                ],
            ),
            finish(),
        ],
        [
            "0 +message",
            "0.0 +output_text",
            "0.0 'See'",
            "0.0 @https://x",
            "0.0 ='See'",
            "0.0 -output_text",
            "0 -message completed",
        ],
        id="an annotation",
    ),
]


@pytest.mark.parametrize(("chunks", "lines"), EVENTS)
def test_events_come_in_openais_order(chunks: list[JSON], lines: list[str]) -> None:
    assert translate(chunks).lines == lines


ITEMS = [
    # delta.content
    pytest.param(
        [delta(content=None), delta(content=""), delta(role="assistant"), finish()],
        [],
        id="null and empty content say nothing",
    ),
    pytest.param(
        [delta(content="Hi"), finish("stop", content="!")],
        ["message Hi!"],
        id="content on the finish chunk comes first",
    ),
    pytest.param([finish()], [], id="a turn may say nothing"),
    pytest.param(
        [delta(content=[{"type": "text", "text": "Hi"}]), finish()],
        ["message Hi"],
        id="content as a list of parts",
    ),
    pytest.param(
        [
            delta(
                content=[
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "Hi"},
                ]
            ),
            finish(),
        ],
        ["reasoning hm", "message Hi"],
        id="content with a thinking part",
    ),
    pytest.param(
        [delta(content=[{"type": "refusal", "refusal": "no"}]), finish()],
        ["message refusal no"],
        id="content with a refusal part",
    ),
    # delta.reasoning and its other names
    pytest.param(
        [delta(reasoning_content="hm"), delta(content="Hi"), finish()],
        ["reasoning hm", "message Hi"],
        id="reasoning_content",
    ),
    pytest.param(
        [delta(reasoning="hm", reasoning_content="hm"), finish()],
        ["reasoning hm"],
        id="both names: one is taken",
    ),
    pytest.param(
        [
            delta(reasoning="hm", reasoning_details=[{"type": "reasoning.text", "text": "hm"}]),
            finish(),
        ],
        ["reasoning hm"],
        id="a list and a string: one is taken",
    ),
    pytest.param(
        [
            delta(
                reasoning_details=[
                    {"type": "reasoning.summary", "summary": "h"},
                    {"type": "reasoning.text", "text": "m"},
                    {"data": "x"},
                ]
            ),
            finish(),
        ],
        ["reasoning summary h | m"],
        id="reasoning_details alone",
    ),
    pytest.param(
        [
            delta(reasoning="a"),
            delta(content="b"),
            delta(reasoning="c"),
            delta(content="d"),
            finish(),
        ],
        ["reasoning a", "message b", "reasoning c", "message d"],
        id="reasoning that resumes is a new item",
    ),
    pytest.param(
        [
            delta(reasoning="a"),
            calls(call(0, "call_a", "f", "{}")),
            delta(reasoning="b"),
            calls(call(1, "call_b", "f", "{}")),
            finish(),
        ],
        ["reasoning a", "f/call_a {}", "reasoning b", "f/call_b {}"],
        id="reasoning between calls",
    ),
    pytest.param(
        [delta(reasoning="a", content="b"), finish()],
        ["reasoning a", "message b"],
        id="reasoning and content in one chunk",
    ),
    # text after a call
    pytest.param(
        [
            calls(call(0, "call_a", "f", "{}")),
            delta(content=" \n"),
            delta(content="Done"),
            delta(content=" ."),
            finish(),
        ],
        ["f/call_a {}", "message Done ."],
        id="text after a call is a new message",
    ),
    pytest.param(
        [calls(call(0, "call_a", "f", "{}")), delta(content="\n\n"), finish()],
        ["f/call_a {}"],
        id="white space after a call is no message",
    ),
    pytest.param(
        [
            delta(content="a"),
            calls(call(0, "call_a", "f", "{")),
            delta(content="b"),
            calls(call(0, arguments="}")),
            finish(),
        ],
        ["message a", "f/call_a {}", "message b"],
        id="a call goes on while text is said",
    ),
]


@pytest.mark.parametrize(("chunks", "items"), ITEMS)
def test_chunks_become_items(chunks: list[JSON], items: list[str]) -> None:
    turn = translate(chunks)
    assert turn.items == items
    assert turn.outcome is not None
    assert turn.outcome.status == "completed"


REASONS = [
    *(
        (word, "completed", None)
        for word in (
            "stop",
            "tool_calls",
            "function_call",
            "eos",
            "end_turn",
            "STOP",
            "eos_token",
            "complete",
        )
    ),
    *(
        (word, "incomplete", "max_output_tokens")
        for word in ("length", "max_tokens", "MAX_TOKENS", "model_length")
    ),
    *((word, "incomplete", "content_filter") for word in ("content_filter", "SAFETY", "sensitive")),
    *(
        (word, "failed", "upstream_error")
        for word in ("error", "network_error", "insufficient_system_resource")
    ),
]


@pytest.mark.parametrize(("word", "status", "reason"), REASONS)
def test_a_finish_reason_decides_the_outcome(word: str, status: str, reason: str | None) -> None:
    turn = translate([delta(content="Hi"), finish(word)])
    assert turn.outcome is not None
    assert turn.outcome.status == status
    failure = turn.outcome.failure
    assert (turn.outcome.incomplete_reason or (failure.reason if failure else None)) == reason
    assert turn.items == ["message Hi" if status == "completed" else "message Hi (incomplete)"]


ENDINGS = [
    pytest.param([delta(content="Hi"), finish()], False, "completed", id="a reason without [DONE]"),
    pytest.param([delta(content="Hi")], True, "completed", id="[DONE] without a reason"),
    pytest.param(
        [delta(content="Hi"), finish("")], True, "completed", id="an empty reason and [DONE]"
    ),
    pytest.param([delta(content="Hi")], False, "failed", id="neither"),
    pytest.param([finish("")], False, "failed", id="an empty reason alone"),
    pytest.param([], True, "failed", id="[DONE] and nothing else"),
    pytest.param([], False, "failed", id="nothing at all"),
    pytest.param(
        [calls(call(0, "call_a", "f", ""))], True, "completed", id="[DONE] after the name of a call"
    ),
]


@pytest.mark.parametrize(("chunks", "done_seen", "status"), ENDINGS)
def test_how_a_stream_may_end(chunks: list[JSON], done_seen: bool, status: str) -> None:
    turn = translate(chunks, done_seen=done_seen)
    assert turn.outcome is not None
    assert turn.outcome.status == status
    assert (turn.outcome.failure is not None) == (status == "failed")
    if turn.outcome.failure is not None:
        assert (turn.outcome.failure.reason, turn.outcome.failure.code) == (
            "upstream_ended_early",
            "server_error",
        )
        assert all(item["status"] == "incomplete" for item in turn.output)


TRUNCATED = [
    pytest.param(
        [call(0, "call_a", "f", '{"a":')],
        ['f/call_a {"a": (incomplete)'],
        id="arguments in the middle",
    ),
    pytest.param(
        [call(0, "call_a", "f", "{}")],
        ["f/call_a {} (incomplete)"],
        id="the last call, though it looks whole",
    ),
    pytest.param(
        [call(0, "call_a", "f", "")],
        ["f/call_a  (incomplete)"],
        id="no arguments yet, and none made up",
    ),
    pytest.param(
        [call(0, "call_a", "f", "{}"), call(1, "call_b", "f", "{")],
        ["f/call_a {}", "f/call_b { (incomplete)"],
        id="a whole call before a broken one",
    ),
    pytest.param(
        [call(0, "call_a", "f", '{"a"'), call(1, "call_b", "f", "{")],
        ['f/call_a {"a" (incomplete)', "f/call_b { (incomplete)"],
        id="two broken ones",
    ),
]


@pytest.mark.parametrize(("pieces", "items"), TRUNCATED)
def test_truncated_calls_are_incomplete(pieces: list[JSON], items: list[str]) -> None:
    turn = translate([*(calls(piece) for piece in pieces), finish("length")])
    assert turn.items == items
    assert [item["call_id"] for item in turn.calls] == [
        item.split("/")[1].split()[0] for item in items if "incomplete" not in item
    ]


def test_close_incomplete_closes_open_items_and_keeps_done_ones() -> None:
    turn = translate(
        [
            delta(reasoning="hm"),
            delta(content="Hel"),
            calls(call(0, "call_a", "f", "{}"), call(1, "call_b", "g", "{")),
        ],
        cut=True,
    )
    assert turn.items == [
        "reasoning hm",
        "message Hel",
        "f/call_a {}",
        "g/call_b { (incomplete)",
    ]
    assert [item["call_id"] for item in turn.calls] == ["call_a"]
    assert turn.outcome is None


def test_close_incomplete_drops_a_call_that_was_not_shown() -> None:
    assert translate([calls(call(0, "call_a", "f", ""))], cut=True).lines == []


def test_output_indices_begin_where_the_turn_does() -> None:
    turn = translate(
        [delta(content="Hi"), calls(call(0, "call_a", "f", "{}")), finish()], first_index=5
    )
    assert [
        event["output_index"] for event in turn.events if event["type"].endswith("item.added")
    ] == [5, 6]


USAGE = [
    pytest.param(
        [{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}],
        (3, 4, 7, 0, 0, 0),
        id="in its own chunk",
    ),
    pytest.param(
        [{**finish(), "usage": {"prompt_tokens": 3, "completion_tokens": 4}}],
        (3, 4, 7, 0, 0, 0),
        id="on the finish chunk, without a total",
    ),
    pytest.param(
        [
            {**delta(content="a"), "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
            {**finish(), "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        ],
        (3, 2, 5, 0, 0, 0),
        id="on every chunk: the last counts",
    ),
    pytest.param(
        [
            {
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": 4,
                    "total_tokens": 13,
                    "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2},
                    "completion_tokens_details": {"reasoning_tokens": 1},
                }
            }
        ],
        (9, 4, 13, 5, 2, 1),
        id="with details and no choices at all",
    ),
    pytest.param(
        [{"choices": [{"delta": {}, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}]}],
        (3, 4, 7, 0, 0, 0),
        id="inside the choice",
    ),
    pytest.param(
        [{"x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}}],
        (3, 4, 7, 0, 0, 0),
        id="under x_groq",
    ),
    pytest.param(
        [{"usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_cache_hit_tokens": 2}}],
        (3, 4, 7, 2, 0, 0),
        id="DeepSeek's cached tokens",
    ),
    pytest.param(
        [{"usage": {"prompt_tokens": 3.0, "completion_tokens": "4", "total_tokens": -1}}],
        (3, 4, 7, 0, 0, 0),
        id="numbers of odd types",
    ),
    pytest.param([{"usage": None}, {"usage": {}}], None, id="null and empty"),
    pytest.param([], None, id="never"),
]


@pytest.mark.parametrize(("chunks", "counts"), USAGE)
def test_usage_of_every_vendor_is_read(chunks: list[JSON], counts: tuple[int, ...] | None) -> None:
    usage = translate([delta(content="Hi"), *chunks, finish()]).usage
    if counts is None:
        assert usage is None
        return
    assert usage is not None
    events, texts = usage["input_tokens_details"], usage["output_tokens_details"]
    totals = usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]
    assert (
        *totals,
        events["cached_tokens"],
        events["cache_write_tokens"],
        texts["reasoning_tokens"],
    ) == counts


def test_usage_adds_up_over_turns() -> None:
    entry = translate(
        [
            {
                **finish(),
                "usage": {
                    "prompt_tokens": 3,
                    "completion_tokens": 4,
                    "prompt_tokens_details": {"cached_tokens": 1},
                },
            }
        ]
    ).usage
    two = add_usage(entry, entry)
    assert two is not None
    assert (two["input_tokens"], two["total_tokens"], two["input_tokens_details"]) == (
        6,
        14,
        {"cached_tokens": 2, "cache_write_tokens": 0},
    )
    assert add_usage(None, entry) == add_usage(entry, None) == entry
    assert add_usage(None, None) is None


def _scored(content: str | None, *tokens: str) -> JSON:
    scores = [
        {
            "token": token,
            "logprob": -0.5,
            "bytes": None,
            "top_logprobs": [{"token": token, "logprob": -0.5}],
        }
        for token in tokens
    ]
    return {"choices": [{"delta": {"content": content}, "logprobs": {"content": scores}}]}


def test_log_probabilities_go_with_the_text_they_make() -> None:
    turn = translate(
        [_scored("Hi", "Hi"), _scored("", "half"), _scored("!", "other half"), finish()],
        want_logprobs=True,
    )
    deltas = [
        [score["token"] for score in event["logprobs"]]
        for event in turn.events
        if event["type"].endswith("text.delta")
    ]
    assert deltas == [["Hi"], ["half", "other half"]]
    scores = turn.output[0]["content"][0]["logprobs"]
    assert scores[0] == {
        "token": "Hi",
        "logprob": -0.5,
        "bytes": [],
        "top_logprobs": [{"token": "Hi", "logprob": -0.5, "bytes": []}],
    }
    assert len(scores) == 3


def test_model_and_tier_are_those_of_the_upstream() -> None:
    translator = ChatTranslator(str)
    for chunk in (
        ChatChunk(model="m-1", service_tier="flex"),
        ChatChunk(content="Hi"),
        ChatChunk(model="m-2"),
    ):
        translator.feed(chunk)
    assert (translator.model, translator.service_tier) == ("m-2", "flex")


LIMITED = [
    pytest.param(ChatChunk(content="x" * 1000), id="text"),
    pytest.param(ChatChunk(content="é" * 500), id="bytes, not characters"),
    pytest.param(ChatChunk(reasoning="x" * 1000), id="reasoning"),
    pytest.param(ChatChunk(refusal="x" * 1000), id="refusal"),
    pytest.param(ChatChunk(calls=(CallDelta(0, "call_a", "f", "x" * 1000),)), id="arguments"),
    pytest.param(
        ChatChunk(calls=(CallDelta(0, "call_a", "", "x" * 1000),)),
        id="arguments of a call without a name",
    ),
    pytest.param(ChatChunk(content="x" * 500, reasoning="x" * 500), id="items as well as text"),
]


def _feed_on(translator: ChatTranslator, chunk: ChatChunk, taken: list[list[JSON]]) -> None:
    for _ in range(100):
        taken.append(translator.output)
        translator.feed(chunk)


@pytest.mark.parametrize("chunk", LIMITED)
def test_a_turn_above_its_limit_fails_before_the_chunk_is_used(chunk: ChatChunk) -> None:
    translator, taken = (
        ChatTranslator(counter(), ChatOptions(output_limit=20_000)),
        list[list[JSON]](),
    )
    with pytest.raises(LimitReached) as caught:
        _feed_on(translator, chunk, taken)
    assert caught.value.reason == "output_limit"
    assert 5 <= len(taken) <= 21
    assert translator.output == taken[-1], (
        "the events of a refused chunk never go out, so it may leave no trace"
    )
    translator.close_incomplete()
    assert all(item["status"] != "in_progress" for item in translator.output)


def _pieces(chance: random.Random, text: str) -> list[str]:
    cuts = sorted(chance.sample(range(len(text) + 1), min(len(text), chance.randint(0, 12))))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def test_the_output_does_not_depend_on_how_chunks_are_split() -> None:
    chance = random.Random(20)
    arguments = '{"city": "Köln", "days": [1, 2, 3], "note": "\\u00e9 {}"}'

    def chunks() -> list[Any]:
        published = [delta(reasoning=piece) for piece in _pieces(chance, "First I think. 🤔")]
        published += [delta(content=piece) for piece in _pieces(chance, "  Then I speak: {}\n")]
        published.append(calls(call(0, "call_a", "look"), call(1, "call_b", "hear")))
        both = [call(0, arguments=piece) for piece in _pieces(chance, arguments)]
        for piece in _pieces(chance, arguments):
            both.insert(chance.randint(0, len(both)), call(1, arguments=piece))
        turn_item = {0: iter(_pieces(chance, arguments)), 1: iter(_pieces(chance, arguments))}
        order = [piece["index"] for piece in both]
        published += [
            calls(call(index, arguments=next(turn_item[index], "")))
            for index in order + [0] * 15 + [1] * 15
        ]
        return [*published, finish("tool_calls")]

    first = translate(chunks()).output
    assert [item.get("arguments") for item in first] == [None, None, arguments, arguments]
    for _ in range(200):
        assert translate(chunks()).output == first
