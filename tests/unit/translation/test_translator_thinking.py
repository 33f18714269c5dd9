"""`<think>` in the text, for upstreams with the setting `think_tags`."""

import random

import pytest

from tests.support.chat_turns import call, calls, delta, finish, translate

CASES = [
    pytest.param("<think>hm</think>Hi", ["reasoning hm", "message Hi"], id="a thought, then text"),
    pytest.param(
        " \n<think>\nhm\n</think>\n\nHi",
        ["reasoning \nhm\n", "message Hi"],
        id="white space around the tags",
    ),
    pytest.param(
        "<reasoning>a</reasoning><reasoning>b</reasoning>Hi",
        ["reasoning ab", "message Hi"],
        id="Bedrock: tags anew in every chunk",
    ),
    pytest.param("<think>hm", ["reasoning hm"], id="never closed"),
    pytest.param("<think>a < b </thin", ["reasoning a < b </thin"], id="no closing tag after all"),
    pytest.param("<think></think>Hi", ["message Hi"], id="an empty thought"),
    pytest.param("<thought>hm</thought>Hi", ["reasoning hm", "message Hi"], id="Gemini"),
    pytest.param("<seed:think>hm</seed:think>Hi", ["reasoning hm", "message Hi"], id="Seed"),
    pytest.param("[THINK]hm[/THINK]Hi", ["reasoning hm", "message Hi"], id="Magistral"),
    pytest.param("<thinking> is no tag", ["message <thinking> is no tag"], id="another word"),
    pytest.param("<thi", ["message <thi"], id="no tag after all"),
    pytest.param("</think>\n\nHi", ["message Hi"], id="a closing tag alone at the beginning"),
    pytest.param(
        "Write <think>x</think>", ["message Write <think>x</think>"], id="not at the beginning"
    ),
    pytest.param(
        "<think>a</think>b<think>c</think>",
        ["reasoning a", "message b<think>c</think>"],
        id="only at the beginning",
    ),
]


@pytest.mark.parametrize(("content", "items"), CASES)
def test_think_tags_become_reasoning(content: str, items: list[str]) -> None:
    assert translate([delta(content=content), finish()], think_tags=True).items == items


@pytest.mark.parametrize(("content", "items"), CASES)
def test_tags_may_be_cut_anywhere(content: str, items: list[str]) -> None:
    chance = random.Random(7)
    for _ in range(60):
        cuts = sorted(
            chance.sample(range(len(content) + 1), chance.randint(1, min(6, len(content))))
        )
        pieces = [
            content[start:end] for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True)
        ]
        assert (
            translate(
                [*(delta(content=piece) for piece in pieces), finish()], think_tags=True
            ).items
            == items
        )


OPENED = [
    pytest.param("hm</think>Hi", ["reasoning hm", "message Hi"], id="only the closing tag"),
    pytest.param("\nhm\n</think>\n\nHi", ["reasoning \nhm\n", "message Hi"], id="white space"),
    pytest.param("</think>Hi", ["message Hi"], id="no thought"),
    pytest.param("hm [/THINK]Hi", ["reasoning hm ", "message Hi"], id="another tag"),
    pytest.param("<think>hm</think>Hi", ["reasoning hm", "message Hi"], id="both tags"),
    pytest.param(
        "a</think><think>b</think>Hi", ["reasoning ab", "message Hi"], id="another thought"
    ),
    pytest.param("a</think>b</think>c", ["reasoning a", "message b</think>c"], id="the first tag"),
    pytest.param("Just text </thi", ["message Just text </thi"], id="no tag at all"),
]


@pytest.mark.parametrize(("content", "items"), OPENED)
def test_what_stands_before_a_closing_tag_is_reasoning(content: str, items: list[str]) -> None:
    chance = random.Random(7)
    for count in range(30):
        cuts = sorted(
            chance.sample(range(len(content) + 1), min(count, len(content), chance.randint(0, 8)))
        )
        pieces = [
            content[start:end] for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True)
        ]
        chunks = [*(delta(content=piece) for piece in pieces), finish()]
        assert translate(chunks, think_opened=True).items == items
    letters = [*(delta(content=letter) for letter in content), finish()]
    assert translate(letters, think_opened=True).items == items


def test_content_without_a_tag_is_reasoning_if_it_was_cut_off() -> None:
    turn = translate([delta(content="hm"), finish("length")], think_opened=True)
    assert turn.items == ["reasoning hm (incomplete)"]


def test_content_without_a_tag_is_text_if_the_stream_ended_in_order() -> None:
    assert translate([delta(content="Hi")], think_opened=True).items == ["message Hi"]


def test_content_without_a_tag_before_a_call_is_text() -> None:
    chunks = [delta(content="Let me look."), calls(call(0, "a", "f", "{}")), finish("tool_calls")]
    assert translate(chunks, think_opened=True).items == ["message Let me look.", "f/a {}"]


def test_without_the_setting_a_tag_is_text() -> None:
    assert translate([delta(content="<think>hm</think>Hi"), finish()]).items == [
        "message <think>hm</think>Hi"
    ]


def test_log_probabilities_of_reasoning_are_left_out() -> None:
    def scored(content: str) -> dict[str, object]:
        tokens = [{"token": content, "logprob": -1.0, "bytes": None, "top_logprobs": []}]
        return {"choices": [{"delta": {"content": content}, "logprobs": {"content": tokens}}]}

    chunks = [scored("<think>"), scored("hm"), scored("</think>"), scored("Hi"), finish()]
    turn = translate(chunks, think_tags=True, want_logprobs=True)
    assert [score["token"] for score in turn.output[1]["content"][0]["logprobs"]] == ["Hi"]
