"""Rules about a request's parameters that hold for both APIs of an upstream, what they demand of
the answer, and how upstreams differ in those that they take.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.config.dialect import (
    Api,
    CallContent,
    CallIdForm,
    DeveloperRole,
    EffortField,
    MaxTokensField,
    ReasoningBack,
    ReasoningTurns,
    StrictTools,
    StructuredOutput,
    ToolChoice,
)
from models.wire.events import Item
from models.wire.item_types import CALLS
from models.wire.response import LOGPROBS, TEXT_FORMAT_UNMET, TOOL_CHOICE_UNMET

SAMPLING_PARAMETERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Sent under their own names, and only if the client set them: the API's defaults break
reasoning models."""

_NEVER_FORWARDED = frozenset(
    (
        "metadata",
        "store",
        "background",
        "truncation",
        "include",
        "instructions",
        "previous_response_id",
    )
)
"""Parameters for this server alone, whatever `passthrough` lists. `store: true` would keep at
the upstream what our client deletes here."""


def copy_parameters(
    body: dict[str, Any], parameters: Mapping[str, Any], names: Iterable[str]
) -> None:
    """Copies those of the named parameters that the client set."""
    body.update((name, parameters[name]) for name in names if name in parameters)


def add_passthrough(
    body: dict[str, Any], parameters: Mapping[str, Any], passthrough: Iterable[str]
) -> None:
    """Copies the parameters of the upstream's setting `passthrough`, unless the body has them
    already or they must stay here."""
    for name in passthrough:
        if name in parameters and name not in body and name not in _NEVER_FORWARDED:
            body[name] = parameters[name]


def relax_tool_choice(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters for the turns after the first: a required tool call was made, and would
    otherwise be required again in each turn."""
    choice = parameters.get("tool_choice", "auto")
    if isinstance(choice, str):
        return {**parameters, "tool_choice": "auto"} if choice == "required" else parameters
    return {
        **parameters,
        "tool_choice": {**choice, "mode": "auto"} if choice["type"] == "allowed_tools" else "auto",
    }


def wants_summary(parameters: Mapping[str, Any]) -> bool:
    """Whether the client wants summaries of the reasoning."""
    return parameters.get("reasoning", {}).get("summary") is not None


def wants_logprobs(parameters: Mapping[str, Any]) -> bool:
    """Whether the client wants log probabilities. `top_logprobs` alone only says how many."""
    return LOGPROBS in parameters.get("include", ())


_ANSWERED_LATER = frozenset((*CALLS, "mcp_approval_request"))
"""Items after which the client has the next turn: the answer has not come yet."""
_NO_ANSWER = frozenset(("reasoning", "compaction", "mcp_list_tools"))


def unmet_demand(parameters: Mapping[str, Any], output: Sequence[Item]) -> str | None:
    """The first demand that the whole output of a completed response does not meet, as in
    `responses.reason`; None if it meets all.

    Any call meets `tool_choice`: one that it excludes fails the response. Whether JSON fits its
    schema is not checked.
    """
    if _demands_call(parameters.get("tool_choice", "auto")) and not any(
        item["type"].endswith("_call") or item["type"] == "mcp_approval_request" for item in output
    ):
        return TOOL_CHOICE_UNMET
    kind = parameters.get("text", {}).get("format", {}).get("type", "text")
    return None if kind == "text" or _ends_with_json(output) else TEXT_FORMAT_UNMET


def _demands_call(choice: str | Mapping[str, Any]) -> bool:
    if isinstance(choice, str):
        return choice == "required"
    return choice["type"] != "allowed_tools" or choice.get("mode") == "required"


def _ends_with_json(output: Sequence[Item]) -> bool:
    """Whether the answer is JSON or a refusal, or comes later."""
    answer = next((item for item in reversed(output) if item["type"] not in _NO_ANSWER), None)
    if answer is None or answer["type"] != "message":
        return answer is not None and answer["type"] in _ANSWERED_LATER
    if any(part["type"] == "refusal" for part in answer["content"]):
        return True
    try:
        json.loads("".join(part.get("text", "") for part in answer["content"]))
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Dialect:
    """Each field is the setting or the property of the same name in `UpstreamSettings`, which
    explains it."""

    api: Api = "chat"
    max_tokens_field: MaxTokensField = "max_completion_tokens"
    developer_role: DeveloperRole = "system"
    single_system_message: bool = False
    effort_field: EffortField = "reasoning_effort"
    reasoning_back: ReasoningBack = "none"
    reasoning_turns: ReasoningTurns = "last"
    structured_output: StructuredOutput = "json_schema"
    call_id_form: CallIdForm = "as_is"
    foreign_call_fields: Mapping[str, Any] = field(default_factory=dict)
    omit: tuple[str, ...] = ()
    omit_from_schemas: tuple[str, ...] = ()
    alternate_roles: bool = False
    empty_content: str = "(empty)"
    call_content: CallContent = "null"
    tool_choice: ToolChoice = "named"
    tools_for_calls: bool = False
    strict_tools: StrictTools = "as_sent"
    description_limit: int | None = None
    passthrough: tuple[str, ...] = ()
    has_service_tier: bool = False
    max_tokens: int = 32_000
    cache_prompts: bool = False
