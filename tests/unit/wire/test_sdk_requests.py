"""Everything that the installed official SDK can send is kept, refused with a sentence on what to
do, or named in the header of the answer: nothing is dropped in silence."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict, get_type_hints

import pytest
from openai.types.conversations.conversation_create_params import ConversationCreateParams
from openai.types.conversations.item_create_params import ItemCreateParams
from openai.types.conversations.item_list_params import ItemListParams
from openai.types.responses.function_tool_param import FunctionToolParam
from openai.types.responses.input_item_list_params import InputItemListParams
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_compact_params import ResponseCompactParams
from openai.types.responses.response_create_params import (
    ResponseCreateParamsBase,
    ResponseCreateParamsStreaming,
)
from openai.types.responses.response_retrieve_params import ResponseRetrieveParamsStreaming
from openai.types.responses.responses_client_event_param import ResponseCreate

from features.compact_and_count.routes import UnstoredCreate, compacting_create, counting_create
from models.errors import InvalidRequest
from models.wire.conversation import parse_addition, parse_conversation
from models.wire.request import CreateRules, parse_create
from models.wire.without_effect import UNSENT_BY_SOME, UnknownFields
from tests.support.sdk_decisions import (
    REFUSED_ANYWHERE,
    REFUSED_AT_CHAT,
    WITHOUT_EFFECT,
    WITHOUT_EFFECT_AT_NATIVE,
)
from tests.support.sdk_requests import JSON, parameters

_INDEX = re.compile(r"\[\d+\]")
_NOT_OF_THE_SDK = {"client_metadata"}
"""It is Codex's."""
_SEARCHES = {"external_web_access", "search_content_types"}
"""Have no effect if this server searches."""


@dataclass
class Outcome:
    """What becomes of the requests of one SDK."""

    ignored: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """`parameters`, `tools` or `input` -> names in the header"""
    refused: dict[str, str] = field(default_factory=dict)
    """place -> message"""


def with_tools_to_choose(body: JSON, *, native: bool) -> JSON:
    """The body, in which its `tool_choice` finds what it names."""
    choice = body.get("tool_choice")
    if not isinstance(choice, dict):
        return body | {"tools": [{"type": "apply_patch"}]}
    kind = choice["type"]
    tool = {"type": "function" if kind == "allowed_tools" else kind}
    tool |= {"name": "x"} if kind in ("function", "custom", "allowed_tools") else {}
    tool |= {"server_label": "x", "server_url": "https://e.com"} if kind == "mcp" else {}
    if kind == "computer_use_preview":
        tool |= {"display_width": 1, "display_height": 1, "environment": "linux"}
    tool |= {"vector_store_ids": ["x"]} if kind == "file_search" else {}
    tool |= {"container": {"type": "auto"}} if kind == "code_interpreter" else {}
    hosted = ("image_generation", "programmatic")
    return body if kind.startswith(hosted) and not native else body | {"tools": [tool]}


def bodies(annotation: Any, *, native: bool) -> Iterator[tuple[str, JSON]]:
    for place, given in parameters(annotation):
        body = {"model": "m", "input": "x", **given}
        if "stream_options" in given:
            body["stream"] = True
        if "background_options" in given:
            body["background"] = True
        if "tool_choice" in given:
            body = with_tools_to_choose(body, native=native)
        yield place, body


@cache
def outcome_of(*, native: bool, annotation: Any = ResponseCreateParamsBase) -> Outcome:
    outcome, refused_object = Outcome(), "-"
    for place, body in bodies(annotation, native=native):
        if place.startswith(refused_object):
            continue
        try:
            request = parse_create(
                body,
                new_id=str,
                rules=CreateRules(has_web_search=not native, native=native, unsent=UNSENT_BY_SOME),
            )
        except InvalidRequest as refusal:
            outcome.refused[place] = refusal.message
            if place.endswith("]"):
                refused_object = place
            continue
        for name in request.ignored:
            plain = _INDEX.sub("", name)
            is_tool = "tools." in plain
            scope = "tools" if is_tool else "input" if plain.startswith("input.") else "parameters"
            last = plain.rpartition(".")[2]
            outcome.ignored[scope].add(plain if scope == "parameters" else last)
    return outcome


def unexpected_refusals(outcome: Outcome, decisions: Mapping[str, str]) -> dict[str, str]:
    return {
        place: message
        for place, message in outcome.refused.items()
        if not any(re.match(each, place) and part in message for each, part in decisions.items())
    }


@pytest.mark.parametrize(
    ("native", "decisions"),
    [
        (False, REFUSED_ANYWHERE | REFUSED_AT_CHAT),
        (True, REFUSED_ANYWHERE),
    ],
    ids=["chat", "native"],
)
def test_what_is_refused_was_decided_and_the_sentence_says_what_to_do(
    decisions: dict[str, str], native: bool
) -> None:
    outcome = outcome_of(native=native)
    assert unexpected_refusals(outcome, decisions) == {}
    assert [each for each in decisions if not any(re.match(each, p) for p in outcome.refused)] == []


def test_what_has_no_effect_at_a_chat_upstream_was_decided() -> None:
    ignored = outcome_of(native=False).ignored
    for scope, names in WITHOUT_EFFECT.items():
        assert ignored[scope] == set(names) - _NOT_OF_THE_SDK, scope


def test_a_native_upstream_gets_all_but_what_this_server_serves() -> None:
    ignored = outcome_of(native=True).ignored
    for scope, names in WITHOUT_EFFECT_AT_NATIVE.items():
        assert ignored[scope] == set(names), scope


class _NewFunction(FunctionToolParam, total=False):
    next_year: str


class _NewTool(TypedDict):
    type: Literal["next_year"]


class _NewRelease(TypedDict, total=False):
    next_year: str
    truncation: Literal["auto", "next_year"]
    tools: list[_NewFunction | _NewTool]


def test_what_a_new_release_brings_is_noticed() -> None:
    outcome = outcome_of(native=False, annotation=_NewRelease)
    unexpected = unexpected_refusals(outcome, REFUSED_ANYWHERE | REFUSED_AT_CHAT)
    assert {*unexpected} == {"next_year", "truncation='next_year'", "tools[next_year]"}
    assert "next_year" in outcome.ignored["tools"]


def test_the_page_lists_what_has_no_effect() -> None:
    section = Path("docs/wire.md").read_text().partition("## Without effect")[2]
    lines = section.partition("\n## ")[0].splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.startswith("|")][2:]
    listed = {
        where.split()[0]: set(re.findall(r"`([a-z_.]+)`", names))
        - {"effort_field", "reasoning_back", "include"}
        for where, names in rows
    }
    assert listed == {scope: set(names) for scope, names in WITHOUT_EFFECT.items()}


@pytest.mark.parametrize(
    ("annotation", "to_body"),
    [
        (InputTokenCountParams, counting_create),
        (ResponseCompactParams, compacting_create),
    ],
    ids=["input_tokens", "compact"],
)
def test_routes_without_an_answer_have_no_parameters_of_their_own(
    annotation: Any, to_body: Callable[[Any], UnstoredCreate]
) -> None:
    checked = {place for place, _ in bodies(ResponseCreateParamsBase, native=False)}
    new = [each for each in bodies(annotation, native=False) if each[0] not in checked]
    for _, body in new:
        parse_create(to_body(body).body, new_id=str, rules=CreateRules(has_web_search=True))
    assert {place.partition("=")[0] for place, _ in new} <= {"personality"}
    for name in get_type_hints(annotation):
        to_body({"model": "m", "input": "x", name: None if name == "personality" else "x"})


@pytest.mark.parametrize(
    ("annotation", "parse"),
    [(ConversationCreateParams, parse_conversation), (ItemCreateParams, parse_addition)],
    ids=["create", "add"],
)
def test_conversations_take_every_item(annotation: Any, parse: Callable[..., Any]) -> None:
    assert set(get_type_hints(annotation)) <= {"items", "metadata", "include"}
    refused = {}
    for place, body in parameters(annotation):
        if "include" in body or "compaction_trigger" in place:
            continue
        try:
            parse(body, new_id=str, unknown=UnknownFields())
        except InvalidRequest as refusal:
            refused[place.replace("items", "input", 1)] = refusal.message
    assert unexpected_refusals(Outcome(refused=refused), REFUSED_ANYWHERE) == {}


def test_the_queries_and_the_socket_have_no_other_parameters() -> None:
    assert set(get_type_hints(ResponseRetrieveParamsStreaming)) == {
        *("include", "include_obfuscation", "starting_after", "stream"),
    }
    for listed in (InputItemListParams, ItemListParams):
        assert set(get_type_hints(listed)) == {"after", "include", "limit", "order"}
    only_here = {"type", "stream_id", "generate"}
    assert set(get_type_hints(ResponseCreate)) - only_here == set(
        get_type_hints(ResponseCreateParamsStreaming)
    )
