"""A response's parameters and history become the body of a request to Anthropic's Messages API.

The conversation is put in order as for a chat upstream (worker/translation/chat); here its messages
become blocks.
"""

from typing import Any

from models.wire.events import Item
from worker.translation.chat.messages import chat_messages
from worker.translation.chat.request import (
    chat_tools,
    effort_fields,
    format_instructions,
    instructions_for,
    reasoning_start,
)
from worker.translation.functions import omit_keywords
from worker.translation.messages.conversation import THINKING, Block, conversation_of
from worker.translation.request_parameters import Dialect, add_passthrough
from worker.translation.returned_content import ReturnedCalls
from worker.translation.tool_catalog import ToolCatalog

_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_NEVER_OMITTED = frozenset(("name", "input_schema"))
_NOT_AT_THE_TOP = ("oneOf", "anyOf", "allOf")
"""Keywords that no `input_schema` may have at its top level."""
_LOWEST_BUDGET = 1024
"""Tokens; the API refuses a smaller budget."""
_SHARES = {"minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95, "max": 0.95}
"""`reasoning.effort` -> the share of the output tokens that the model may use to think."""


def messages_request(
    *,
    model: str,
    parameters: dict[str, Any],
    history: list[Item],
    tool_catalog: ToolCatalog,
    dialect: Dialect,
    returned_calls: ReturnedCalls,
) -> dict[str, Any]:
    """The body for the upstream, always for a stream. The arguments are those of `chat_request`
    (worker/translation/chat/request.py).

    Raises UpstreamFailed for content that the API has no block for.
    """
    messages = chat_messages(
        instructions_for(parameters, dialect),
        history,
        dialect,
        tool_catalog,
        reasoning_start(parameters, history, dialect),
        returned_calls,
    )
    system, turns = conversation_of(messages)
    limit = parameters.get("max_output_tokens", dialect.max_tokens)
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": limit,
        "messages": turns,
        "stream": True,
    }
    if system:
        body["system"] = system
    body.update(_tools(chat_tools(tool_catalog, messages, dialect), parameters))
    body.update(_thinking(parameters, dialect, body))
    if (output := _output_config(parameters, dialect)) != {}:
        body["output_config"] = output
    if body.get("thinking", {}).get("type", "disabled") == "disabled":
        body.update(_sampling(parameters))
    add_passthrough(body, parameters, dialect.passthrough)
    if dialect.omit:
        body = _without_fields(body, frozenset(dialect.omit))
    if dialect.cache_prompts or "prompt_cache_key" in parameters:
        _mark_for_cache(body, parameters)
    return body


def _tools(fields: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """The tools and the choice of a chat request in the API's form."""
    if "tools" not in fields:
        return {}
    choice = fields.get("tool_choice", "auto")
    chosen: dict[str, Any] = (
        {"type": "tool", "name": choice["function"]["name"]}
        if isinstance(choice, dict)
        else {"type": _CHOICES[choice]}
    )
    if parameters.get("parallel_tool_calls") is False and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    tools = [_tool(tool["function"]) for tool in fields["tools"]]
    is_default = chosen == {"type": "auto"}
    return {"tools": tools} if is_default else {"tools": tools, "tool_choice": chosen}


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    schema = {
        name: value for name, value in function["parameters"].items() if name not in _NOT_AT_THE_TOP
    }
    tool = {"name": function["name"], "input_schema": schema}
    if "description" in function:
        tool["description"] = function["description"]
    if function.get("strict"):
        tool["strict"] = True
    return tool


def _thinking(parameters: dict[str, Any], dialect: Dialect, body: dict[str, Any]) -> dict[str, Any]:
    """The field `thinking`. It is left out where the API would refuse it: beside a forced call, and
    with a budget after a call before which the model's thinking is not known."""
    reasoning = parameters.get("reasoning", {})
    effort, has_summary = reasoning.get("effort"), reasoning.get("summary") is not None
    if dialect.effort_field not in ("adaptive", "budget"):
        return effort_fields(parameters, dialect)
    if effort is None and not has_summary:
        return {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        return {}
    display = {"display": "summarized"} if has_summary else {}
    if dialect.effort_field == "adaptive":
        return {"thinking": {"type": "adaptive", **display}}
    budget = max(_LOWEST_BUDGET, int(body["max_tokens"] * _SHARES.get(effort or "", 0.5)))
    if budget >= body["max_tokens"] or _lacks_thinking(body["messages"]):
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _lacks_thinking(turns: list[dict[str, Any]]) -> bool:
    """Whether the last turn of the model is answered by results of tools and has no thinking
    before its calls."""
    if len(turns) < 2 or turns[-1]["content"][0]["type"] != "tool_result":
        return False
    first: Block = turns[-2]["content"][0]
    return first["type"] not in THINKING


def _output_config(parameters: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The effort, and a strict schema of the answer. Other formats are in the instructions."""
    config: dict[str, Any] = {}
    effort = parameters.get("reasoning", {}).get("effort")
    if dialect.effort_field == "adaptive" and effort not in (None, "none"):
        config["effort"] = "low" if effort == "minimal" else effort
    text = parameters.get("text", {})
    wanted = text.get("format", {})
    is_told = format_instructions(text, dialect.structured_output, dialect.api) is not None
    if wanted.get("type") == "json_schema" and not is_told:
        schema = omit_keywords(wanted["schema"], dialect.omit_from_schemas)
        config["format"] = {"type": "json_schema", "schema": schema}
    return config


def _sampling(parameters: dict[str, Any]) -> dict[str, Any]:
    """One of `temperature` and `top_p`: newer models refuse both together. The API's scale of
    temperatures ends at 1."""
    if "temperature" in parameters:
        return {"temperature": min(1.0, parameters["temperature"])}
    return {"top_p": parameters["top_p"]} if "top_p" in parameters else {}


def _without_fields(body: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The body without these fields: its own, and those of its tools."""
    kept = {name: value for name, value in body.items() if name not in names}
    inner = names - _NEVER_OMITTED
    if "tools" in kept:
        kept["tools"] = [
            {name: value for name, value in tool.items() if name not in inner}
            for tool in kept["tools"]
        ]
    return kept


def _mark_for_cache(body: dict[str, Any], parameters: dict[str, Any]) -> None:
    """Marks, for the vendor's cache, the end of the instructions (else of the tools), and of the
    last two messages of the user: the one before the last was the end of the turn before."""
    mark: dict[str, Any] = {"type": "ephemeral"}
    if parameters.get("prompt_cache_retention") == "24h":
        mark["ttl"] = "1h"
    ends = [body[name] for name in ("system", "tools") if body.get(name)][:1]
    users = [turn["content"] for turn in body["messages"] if turn["role"] == "user"]
    for blocks in (*ends, *users[-2:]):
        blocks[-1] = {**blocks[-1], "cache_control": mark}
