"""`<think>` in the text, for upstreams with the setting `think_tags`."""

import random

import pytest

from tests.support.chat_turns import delta, finish, translate

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
    pytest.param("<thinking> is no tag", ["message <thinking> is no tag"], id="another word"),
    pytest.param("<thi", ["message <thi"], id="no tag after all"),
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
