"""Answers that are not whole, or not OpenAI's: none of them is `completed` without its content."""

import json
from typing import Any

import pytest

from tests.support.api import JSON
from tests.support.chat_turns import call, calls, catalog_with, delta, finish, translate

HI = delta(content="Hi")


def failure(chunks: list[Any], **options: Any) -> tuple[str, str]:
    """The reason and the message of a turn that failed."""
    outcome = translate(chunks, **options).outcome
    assert outcome is not None
    assert outcome.failure is not None
    return outcome.failure.reason, outcome.failure.message


# --- ends ---


def test_an_unknown_end_keeps_the_text_and_names_the_word() -> None:
    assert translate([HI, finish("out_of_cheese")]).items == ["message Hi (incomplete)"]
    reason, message = failure([HI, finish("out_of_cheese")])
    assert (reason, "'out_of_cheese'" in message) == ("upstream_finish_reason", True)


@pytest.mark.parametrize("word", ["out_of_cheese", "length", "content_filter", "error", "OTHER"])
def test_an_open_call_is_completed_by_a_stop_only(word: str) -> None:
    turn = translate([calls(call(0, "a", "f", '{"a": "hal')), finish(word)])
    assert turn.items == ['f/a {"a": "hal (incomplete)']
    assert turn.calls == []
    assert turn.outcome is not None
    assert turn.outcome.status != "completed"


def test_an_operator_can_say_what_a_word_means() -> None:
    turn = translate([HI, finish("out_of_cheese")], finish_reasons={"out_of_cheese": "stop"})
    assert turn.items == ["message Hi"]


def test_a_later_stop_takes_no_other_end_back() -> None:
    turn = translate([HI, finish("length"), finish("stop")])
    assert turn.outcome is not None
    assert turn.outcome.incomplete_reason == "max_output_tokens"


# --- half a call ---

HALVES = [
    '{"a": "hal',
    '{"a": 1',
    "{",
    '{"a": [1, 2',
    '{"a": {"b": "x"}',
    '{"a": "\\"}',
    '"{\\"a\\"',
]


@pytest.mark.parametrize("arguments", HALVES)
@pytest.mark.parametrize("word", ["stop", "tool_calls", None])
def test_half_a_call_is_not_completed(arguments: str, word: str | None) -> None:
    chunks = [HI, calls(call(0, "a", "f", arguments)), *([finish(word)] if word else [])]
    turn = translate(chunks)
    assert turn.calls == []
    assert turn.items == ["message Hi", f"f/a {arguments} (incomplete)"]
    reason, message = failure(chunks)
    assert (reason, "'f'" in message) == ("upstream_ended_early", True)


def at_the_limit(arguments: str) -> list[JSON]:
    usage = {"prompt_tokens": 3, "completion_tokens": 50}
    return [calls(call(0, "a", "f", arguments)), {**finish("tool_calls"), "usage": usage}]


@pytest.mark.parametrize("arguments", ['{"a": "hal', "", "{}"])
def test_half_a_call_at_the_limit_of_tokens_is_incomplete(arguments: str) -> None:
    turn = translate(at_the_limit(arguments), token_limit=50)
    assert turn.outcome is not None
    assert (turn.outcome.status, turn.outcome.incomplete_reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert turn.calls == []


def test_a_call_below_the_limit_of_tokens_may_have_no_arguments() -> None:
    assert failure(at_the_limit('{"a": "hal'), token_limit=51)[0] == "upstream_ended_early"
    assert translate(at_the_limit(""), token_limit=51).items == ["f/a {}"]


def test_half_an_input_of_a_custom_tool_is_not_completed() -> None:
    turn = translate(
        [calls(call(0, "a", "sh", '{"input": "ls -')), finish("tool_calls")],
        tool_catalog=catalog_with(custom=["sh"]),
    )
    assert turn.items == ["sh/a ls - (incomplete)"]


@pytest.mark.parametrize("arguments", ["not json", "[1]", "{}}", "5"])
def test_arguments_that_are_wrong_but_whole_are_the_models_own(arguments: str) -> None:
    turn = translate([calls(call(0, "a", "f", arguments)), finish("tool_calls")])
    assert turn.items == [f"f/a {arguments}"]


# --- nothing at all ---


def test_an_answer_without_output_fails_where_the_response_has_none() -> None:
    chunks = [{**finish("stop"), "usage": {"prompt_tokens": 3, "completion_tokens": 37}}]
    reason, message = failure(chunks, needs_output=True)
    assert (reason, "37 output tokens" in message) == ("upstream_empty", True)
    outcome = translate(chunks).outcome
    assert outcome is not None
    assert outcome.status == "completed"


@pytest.mark.parametrize("word", ["length", "content_filter"])
def test_an_empty_answer_with_a_reason_is_incomplete(word: str) -> None:
    outcome = translate([finish(word)], needs_output=True).outcome
    assert outcome is not None
    assert outcome.status == "incomplete"


@pytest.mark.parametrize(
    ("chunk", "place"),
    [
        (delta(answer_of_next_year="Hi"), "delta.answer_of_next_year"),
        (delta(content=[{"type": "hologram", "points": ["x"]}]), "delta.content.hologram"),
        ({"choices": [{"index": 0, "said": {"text": "Hi"}}]}, "choice.said"),
        ({"choices": [{"message": {"role": "assistant", "waves": ["x"]}}]}, "message.waves"),
        (delta(content=[{"type": "video_url", "video_url": {"url": "https://x"}}]), "video_url"),
        (delta(images=[{"file_id": "file-1"}]), "delta.images"),
        (delta(tool_calls="f()"), "delta.tool_calls"),
    ],
)
def test_an_answer_in_unknown_fields_alone_fails_and_names_them(chunk: JSON, place: str) -> None:
    for end in ([finish()], []):
        reason, message = failure([chunk, *end])
        assert (reason, place in message) == ("upstream_empty", True)


# --- placeholders of arguments ---

WHOLE = '{"a":1}'
PLACEHOLDERS = [
    pytest.param(["{}", WHOLE], ["'" + WHOLE + "'"], id="an empty object, then whole"),
    pytest.param(["{}", '{"a"', ":1}"], ["'{\"a\"'", "':1}'"], id="an empty object, then pieces"),
    pytest.param(["null", WHOLE], ["'" + WHOLE + "'"], id="null"),
    pytest.param(['""', WHOLE], ["'" + WHOLE + "'"], id="an empty string"),
    pytest.param(["None", WHOLE], ["'" + WHOLE + "'"], id="None of Python"),
    pytest.param(['"{}"', WHOLE], ["'" + WHOLE + "'"], id="an empty object in a string"),
    pytest.param(["{ }", "", " ", WHOLE], ["'" + WHOLE + "'"], id="white space"),
    pytest.param(["", "{}", "{}", WHOLE], ["'" + WHOLE + "'"], id="twice"),
    pytest.param(["{}" + WHOLE], ["'" + WHOLE + "'"], id="in one piece"),
    pytest.param(['null {"a"', ":1}"], ["'{\"a\"'", "':1}'"], id="before the first piece"),
    pytest.param([{}, {"a": 1}], ["'" + WHOLE + "'"], id="objects"),
    pytest.param([WHOLE, WHOLE], ["'" + WHOLE + "'"], id="sent again as a whole"),
]


@pytest.mark.parametrize(("pieces", "deltas"), PLACEHOLDERS)
def test_a_placeholder_of_arguments_goes(pieces: list[Any], deltas: list[str]) -> None:
    turn = translate(
        [
            calls(call(0, "a", "f", pieces[0])),
            *(calls(call(0, arguments=piece)) for piece in pieces[1:]),
            finish("tool_calls"),
        ]
    )
    assert turn.items == [f"f/a {WHOLE}"]
    assert turn.lines[1:-2] == [f"0 {piece}" for piece in deltas]


@pytest.mark.parametrize("only", ["{}", "null", '""', "[]", " {} ", '"{}"'])
def test_what_may_be_a_placeholder_is_an_empty_object_at_the_end(only: str) -> None:
    turn = translate([calls(call(0, "a", "f", only)), finish("tool_calls")])
    assert turn.output[0]["arguments"].strip() == "{}"


def test_placeholders_of_parallel_calls_go() -> None:
    turn = translate(
        [
            calls(call(0, "a", "f", "{}"), call(1, "b", "g", "{}"), call(2, "c", "h", "{}")),
            calls(call(1, arguments='{"y":')),
            calls(call(0, arguments=WHOLE)),
            calls(call(1, arguments="2}")),
            finish("tool_calls"),
        ]
    )
    assert turn.items == ["f/a " + WHOLE, 'g/b {"y":2}', "h/c {}"]


# --- halves of characters ---

HIGH, LOW = "\ud83d", "\ude00"


def escaped(*deltas: JSON) -> list[Any]:
    """Payloads with escapes for half characters, then the end."""
    return [json.dumps(chunk).encode() for chunk in (*deltas, finish())]


HALF_CASES = [
    pytest.param(
        [delta(content="a" + HIGH), delta(content=LOW + "b")], ["message a😀b"], id="text"
    ),
    pytest.param([delta(content=HIGH), delta(content=LOW)], ["message 😀"], id="nothing else"),
    pytest.param(
        [delta(content=HIGH), delta(role="assistant"), delta(content=LOW)],
        ["message 😀"],
        id="an empty delta between",
    ),
    pytest.param(
        [delta(content=HIGH), delta(content=LOW + HIGH), delta(content=LOW)],
        ["message 😀😀"],
        id="two in a row",
    ),
    pytest.param(
        [delta(reasoning_content=HIGH), delta(reasoning_content=LOW), HI],
        ["reasoning 😀", "message Hi"],
        id="reasoning",
    ),
    pytest.param([delta(refusal=HIGH), delta(refusal=LOW)], ["message refusal 😀"], id="refusal"),
    pytest.param(
        [
            delta(content=[{"type": "text", "text": HIGH}]),
            delta(content=[{"type": "text", "text": LOW}]),
        ],
        ["message 😀"],
        id="parts",
    ),
    pytest.param(
        [
            calls(call(0, "a", "f", '{"a":"' + HIGH), call(1, "b", "f", '{"b":"' + HIGH)),
            calls(call(1, arguments=LOW + '"}')),
            calls(call(0, arguments=LOW + '"}')),
        ],
        ['f/a {"a":"😀"}', 'f/b {"b":"😀"}'],
        id="arguments of two calls",
    ),
    pytest.param([delta(content="a" + HIGH)], ["message a\ufffd"], id="alone at the end"),
    pytest.param([delta(content="a" + HIGH), delta(content="b")], ["message a\ufffdb"], id="alone"),
    pytest.param(
        [delta(content="a" + HIGH), delta(content=HIGH + LOW)],
        ["message a\ufffd😀"],
        id="alone before a pair",
    ),
    pytest.param([delta(content=LOW + "a")], ["message \ufffda"], id="a second half alone"),
    pytest.param(
        [delta(reasoning_content="a" + HIGH), delta(content="b"), delta(content="c")],
        ["reasoning a\ufffd", "message bc"],
        id="alone before a text of another kind",
    ),
]


@pytest.mark.parametrize(("deltas", "items"), HALF_CASES)
def test_halves_of_a_character_meet(deltas: list[JSON], items: list[str]) -> None:
    turn = translate(escaped(*deltas))
    assert turn.items == items
    raw = [
        json.dumps(chunk, ensure_ascii=False).encode("utf-8", "surrogatepass")
        for chunk in (*deltas, finish())
    ]
    assert translate(raw).items == items
    assert not any("\ufffd" in line for line in turn.lines) or "\ufffd" in "".join(items)


# --- pictures and sound ---

DATA = "iVBORw0KGgo="
URL = f"data:image/png;base64,{DATA}"
PICTURES = [
    pytest.param(delta(images=[{"type": "image_url", "image_url": {"url": URL}}]), id="OpenRouter"),
    pytest.param(delta(images=[URL]), id="addresses"),
    pytest.param(delta(image={"url": URL}), id="one picture"),
    pytest.param(delta(images=[{"b64_json": DATA}]), id="base64"),
    pytest.param(delta(content=[{"type": "image_url", "image_url": {"url": URL}}]), id="a part"),
    pytest.param(delta(content=[{"type": "output_image", "image_url": URL}]), id="another part"),
    pytest.param(
        delta(content=[{"inline_data": {"mime_type": "image/png", "data": DATA}}]), id="inline_data"
    ),
    pytest.param(
        delta(content=[{"inlineData": {"mimeType": "image/png", "data": DATA}}]), id="inlineData"
    ),
    pytest.param(
        delta(
            content=[
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": DATA},
                }
            ]
        ),
        id="Anthropic",
    ),
    pytest.param(
        {"choices": [{"message": {"content": None, "images": [{"image_url": {"url": URL}}]}}]},
        id="no stream",
    ),
]


@pytest.mark.parametrize("chunk", PICTURES)
def test_a_picture_becomes_an_item(chunk: JSON) -> None:
    turn = translate([HI, chunk, delta(content="Bye"), finish()])
    text, picture, more = turn.output
    assert (picture["type"], picture["status"]) == ("image_generation_call", "completed")
    assert picture["result"] == DATA
    assert (text["content"][0]["text"], more["content"][0]["text"]) == ("Hi", "Bye")
    assert [
        event["type"].removeprefix("response.")
        for event in turn.events
        if event["output_index"] == 1
    ] == [
        "output_item.added",
        "image_generation_call.in_progress",
        "image_generation_call.generating",
        "image_generation_call.completed",
        "output_item.done",
    ]


def test_a_picture_at_an_address_becomes_a_link() -> None:
    chunk = delta(images=[{"type": "image_url", "image_url": {"url": "https://x/y.png"}}])
    assert translate([chunk, finish()]).items == ["message ![image](https://x/y.png)"]


def test_sound_without_words_fails_and_says_so() -> None:
    reason, message = failure([delta(audio={"id": "a", "data": "UklGRg=="}), finish()])
    assert (reason, "sound" in message) == ("upstream_garbage", True)


def test_what_the_sound_says_is_text() -> None:
    chunks = [
        delta(audio={"id": "a", "transcript": "Hel"}),
        delta(audio={"data": "UklGRg=="}),
        delta(audio={"transcript": "lo"}),
        finish(),
    ]
    assert translate(chunks).items == ["message Hello"]


# --- other shapes ---

SHAPES = [
    pytest.param(
        [delta(reasoning_text="hm"), HI], ["reasoning hm", "message Hi"], id="reasoning_text"
    ),
    pytest.param([delta(thinking="hm"), HI], ["reasoning hm", "message Hi"], id="thinking"),
    pytest.param([delta(thought="hm"), HI], ["reasoning hm", "message Hi"], id="thought"),
    pytest.param(
        [delta(thoughts=[{"text": "h"}, "m"]), HI], ["reasoning hm", "message Hi"], id="thoughts"
    ),
    pytest.param(
        [delta(thinking={"content": "hm"}), HI], ["reasoning hm", "message Hi"], id="an object"
    ),
    pytest.param(
        [delta(reasoning="hm", thinking="hm"), HI], ["reasoning hm", "message Hi"], id="two names"
    ),
    pytest.param(
        [{"choices": [{"index": 0, "text": "Hi"}]}], ["message Hi"], id="text in the choice"
    ),
    pytest.param(
        [
            delta(
                content=[
                    {"type": "text", "text": "Hi"},
                    {"type": "reference", "reference_ids": [1]},
                ]
            )
        ],
        ["message Hi"],
        id="a part without text",
    ),
    pytest.param(
        [delta(tool_calls={"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}})],
        ["f/a {}"],
        id="calls as one object",
    ),
    pytest.param(
        [delta(tool_calls={"0": {"id": "a", "function": {"name": "f", "arguments": "{}"}}})],
        ["f/a {}"],
        id="calls as an object by number",
    ),
    pytest.param(
        [delta(tool_calls=[{"index": 0, "id": "a", "name": "f", "arguments": WHOLE}])],
        ["f/a " + WHOLE],
        id="a call without an object of its own",
    ),
    pytest.param(
        [
            delta(
                tool_calls=[
                    {
                        "index": 0,
                        "id": "a",
                        "type": "custom",
                        "custom": {"name": "sh", "input": "ls"},
                    }
                ]
            )
        ],
        ["sh/a ls"],
        id="a custom call",
    ),
    pytest.param(
        [
            delta(
                tool_calls=[
                    {
                        "index": 0,
                        "id": "a",
                        "type": "custom",
                        "custom": {"name": "sh", "input": "l"},
                    }
                ]
            ),
            delta(tool_calls=[{"index": 0, "custom": {"input": "s { x"}}]),
        ],
        ["sh/a ls { x"],
        id="a custom call in pieces",
    ),
]


@pytest.mark.parametrize(("chunks", "items"), SHAPES)
def test_other_shapes_are_read(chunks: list[JSON], items: list[str]) -> None:
    turn = translate([*chunks, finish()], tool_catalog=catalog_with("f", custom=["sh"]))
    assert turn.items == items
    assert turn.outcome is not None
    assert turn.outcome.status == "completed"
