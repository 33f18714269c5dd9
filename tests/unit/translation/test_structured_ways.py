"""Structured output for upstreams that have another field for it, or none."""

import itertools
import json
import random
from typing import Any

import pytest

from models.config.dialect import StructuredOutput
from tests.support.chat_turns import delta, finish, translate
from tests.unit.translation.test_chat_request import SCHEMA, body, user
from worker.translation.chat.content_filter import FenceStripper

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
def test_the_format_is_sent_in_the_upstreams_field(
    way: StructuredOutput, for_object: Json, for_schema: Json
) -> None:
    for wanted, expected in (
        ({"type": "json_object"}, for_object),
        (SCHEMA, for_schema),
        ({"type": "text"}, {}),
    ):
        sent = body({"text": {"format": wanted}}, structured_output=way)
        result = {name: sent[name] for name in ("response_format", "guided_json") if name in sent}
        if "json_schema" in result.get("response_format", {}):
            del result["response_format"]["json_schema"]
        assert result == expected


def test_without_a_field_the_instructions_contain_the_schema() -> None:
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


def test_the_schema_is_sent_without_instructions_of_the_client_too() -> None:
    sent = body({"text": {"format": {"type": "json_object"}}}, structured_output="prompt")
    assert [message["role"] for message in sent["messages"]] == ["system"]
    assert "one JSON object" in sent["messages"][0]["content"]


@pytest.mark.parametrize("way", ["json_schema", "guided_json"])
def test_with_a_field_the_instructions_do_not_change(way: StructuredOutput) -> None:
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


@pytest.mark.parametrize(("answer", "expected"), FENCED, ids=range(len(FENCED)))
def test_a_code_fence_is_removed_however_it_is_cut(answer: str, expected: str) -> None:
    chance = random.Random(answer)
    for _ in range(200):
        cuts = sorted(chance.choices(range(len(answer) + 1), k=chance.randint(0, 8)))
        fences = FenceStripper()
        published = "".join(
            fences.strip(answer[start:end])
            for start, end in itertools.pairwise([0, *cuts, len(answer)])
        )
        assert published + fences.flush() == expected


def test_json_in_a_code_fence_comes_out_without_it() -> None:
    turn = translate(
        [
            delta(content="<think>hm</think>``"),
            delta(content='`json\n{"a'),
            delta(content='": 1}\n`'),
            delta(content="``"),
            finish(),
        ],
        fenced=True,
        think_tags=True,
    )
    assert turn.items == ["reasoning hm", 'message {"a": 1}']


def test_a_refusal_stays_a_refusal() -> None:
    assert translate([delta(refusal="No."), finish()], fenced=True).items == ["message refusal No."]
