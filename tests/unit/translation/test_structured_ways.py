"""Structured output where the upstream knows it in another way or not at all."""

import itertools
import json
import random
from typing import Any

import pytest

from models.config.dialect import StructuredOutput
from tests.support.chat_turns import delta, finish, translate
from tests.unit.translation.test_chat_request import SCHEMA, body, user
from worker.translation.chat.structured import FenceStripper

Json = dict[str, Any]

WAYS: list[tuple[StructuredOutput, Json, Json]] = [
    (
        "json_schema",
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema"}},
    ),
    (
        "json_object",
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object"}},
    ),
    (
        "guided_json",
        {"response_format": {"type": "json_object"}},
        {"guided_json": SCHEMA["schema"]},
    ),
    ("prompt", {}, {}),
]


@pytest.mark.parametrize(("way", "for_object", "for_schema"), WAYS, ids=[row[0] for row in WAYS])
def test_the_format_is_asked_for_in_the_upstreams_way(
    way: StructuredOutput, for_object: Json, for_schema: Json
) -> None:
    for wanted, expected in (
        ({"type": "json_object"}, for_object),
        (SCHEMA, for_schema),
        ({"type": "text"}, {}),
    ):
        sent = body({"text": {"format": wanted}}, structured_output=way)
        found = {name: sent[name] for name in ("response_format", "guided_json") if name in sent}
        if "json_schema" in found.get("response_format", {}):
            del found["response_format"]["json_schema"]
        assert found == expected


def test_where_no_field_says_it_the_model_is_told_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"zulu": {"type": "string"}, "alpha": {"type": "integer"}},
    }
    wanted = {"type": "json_schema", "name": "thing", "schema": schema, "description": "A thing."}
    sent = body(
        {"text": {"format": wanted}, "instructions": "Be kind."},
        [user("hi")],
        structured_output="prompt",
    )
    instructions, question = sent["messages"]
    assert question == {"role": "user", "content": "hi"}
    assert instructions["role"] == "system"
    assert instructions["content"].startswith("Be kind.\n\nAnswer with JSON alone")
    assert "'thing'. A thing." in instructions["content"]
    assert instructions["content"].endswith(json.dumps(schema, separators=(",", ":")))


def test_the_model_is_told_without_instructions_of_the_client_too() -> None:
    sent = body({"text": {"format": {"type": "json_object"}}}, structured_output="prompt")
    assert [message["role"] for message in sent["messages"]] == ["system"]
    assert "one JSON object" in sent["messages"][0]["content"]


@pytest.mark.parametrize("way", ["json_schema", "guided_json"])
def test_the_model_is_told_nothing_where_a_field_says_it(way: StructuredOutput) -> None:
    assert body({"text": {"format": SCHEMA}}, structured_output=way)["messages"] == []


FENCED = [
    ('{"a": 1}', '{"a": 1}'),
    ('```json\n{"a": 1}\n```', '{"a": 1}'),
    (' \n```\n{"a": "`` ` ```"}\n\n``` \n', '{"a": "`` ` ```"}'),
    ('```json\n{"a": 1}\n```\nI hope this helps.', '{"a": 1}\n```\nI hope this helps.'),
    ("  Sorry, no.", "  Sorry, no."),
    ("`{}`", "`{}`"),
    ("``", "``"),
    ("```json", "```json"),
    ("``` " + "x" * 50, "``` " + "x" * 50),
    ('```json\n{"a": 1}', '{"a": 1}'),
    ("```\n```", ""),
    ("", ""),
]


@pytest.mark.parametrize(("told", "expected"), FENCED, ids=range(len(FENCED)))
def test_a_fence_is_taken_off_however_it_is_cut(told: str, expected: str) -> None:
    chance = random.Random(told)
    for _ in range(200):
        cuts = sorted(chance.choices(range(len(told) + 1), k=chance.randint(0, 8)))
        fences = FenceStripper()
        heard = "".join(
            fences.strip(told[start:end])
            for start, end in itertools.pairwise([0, *cuts, len(told)])
        )
        assert heard + fences.flush() == expected


def test_a_turn_whose_json_comes_in_a_fence_says_the_json_alone() -> None:
    turn = translate([delta(content="<think>hm</think>``"), delta(content='`json\n{"a'), delta(content='": 1}\n`'), delta(content="``"), finish()],
               fenced=True, think_tags=True)  # fmt: skip
    assert turn.items == ["reasoning hm", 'message {"a": 1}']


def test_a_refusal_stays_a_refusal() -> None:
    assert translate([delta(refusal="No."), finish()], fenced=True).items == ["message refusal No."]
