"""A response's parameters and history become the body of a Chat Completions request."""

from collections.abc import Collection, Sequence
from typing import Any

from models.wire.events import Item
from worker.translation.call_origin import ReturnedCalls
from worker.translation.chat.messages import chat_messages
from worker.translation.chat.structured import format_fields, format_instructions
from worker.translation.chat.tools import chat_tools
from worker.translation.dialect import Dialect
from worker.translation.request_parameters import (
    SAMPLING_PARAMETERS,
    add_passthrough,
    copy_parameters,
    wants_logprobs,
)
from worker.translation.tool_catalog import ToolCatalog

_OPENAI = Dialect()
_NO_ORIGINS = ReturnedCalls()
_NEVER_OMITTED = frozenset(
    ("role", "content", "tool_calls", "tool_call_id", "name", "parameters", "schema")
)
"""Fields inside of the body without which their objects mean nothing."""


def chat_request(
    *,
    model: str,
    parameters: dict[str, Any],
    history: list[Item],
    tool_catalog: ToolCatalog,
    dialect: Dialect = _OPENAI,
    returned_calls: ReturnedCalls = _NO_ORIGINS,
) -> dict[str, Any]:
    """The body for the upstream. It is always streamed, always with usage.

    `parameters` are those of models/wire/request.py. `history` is the whole conversation, oldest
    item first, with references resolved and calls paired (models/wire/pairing.py). Neither is
    changed. `tool_catalog` was built from both. A call of a server tool in the history may have two
    fields besides its item's: its output for the model (`answer`) and the number of its turn
    (`turn`). `returned_calls`: how its calls are shown to this upstream. Parameters in the
    dialect's `passthrough` are sent under their own names.
    """
    text = parameters.get("text", {})
    body: dict[str, Any] = {
        "model": model,
        "messages": chat_messages(
            _instructions(parameters, dialect),
            history,
            dialect,
            tool_catalog,
            _reasoning_start(parameters, history, dialect),
            returned_calls,
        ),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    copy_parameters(body, parameters, SAMPLING_PARAMETERS)
    if "max_output_tokens" in parameters:
        body[dialect.max_tokens_field] = parameters["max_output_tokens"]
    body.update(_effort(parameters, dialect))
    body.update(format_fields(text, dialect.structured_output, dialect.omit_from_schemas))
    if "verbosity" in text and "verbosity" in dialect.passthrough:
        # Only OpenAI's own chat API knows it.
        body["verbosity"] = text["verbosity"]
    tools = chat_tools(tool_catalog, body["messages"], dialect)
    body.update(tools)
    if tools:  # upstreams refuse `parallel_tool_calls` without tools
        copy_parameters(body, parameters, ("parallel_tool_calls",))
    body.update(_logprobs(parameters))
    if dialect.has_service_tier:
        copy_parameters(body, parameters, ("service_tier",))
    add_passthrough(body, parameters, dialect.passthrough)
    return _without_fields(body, dialect.omit) if dialect.omit else body


def _instructions(parameters: dict[str, Any], dialect: Dialect) -> str | None:
    """The client's instructions, and those about the output format that no field of the
    upstream's API can express."""
    texts = [
        parameters.get("instructions"),
        format_instructions(parameters.get("text", {}), dialect.structured_output),
    ]
    present = [text for text in texts if text is not None]
    return "\n\n".join(present) if present else None


def _effort(parameters: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """`reasoning.effort` in the upstream's own field."""
    effort = parameters.get("reasoning", {}).get("effort")
    if effort is None:
        return {}
    enabled = effort != "none"
    match dialect.effort_field:
        case "none":
            return {}
        case "reasoning":
            return {"reasoning": {"effort": effort}}
        case "enable_thinking":
            return {"chat_template_kwargs": _template_switches(parameters, dialect, enabled)}
        case "thinking":
            return {"thinking": {"type": "enabled" if enabled else "disabled"}}
        case "think":
            return {"think": enabled}
        case _:
            return {"reasoning_effort": effort}


def _template_switches(
    parameters: dict[str, Any], dialect: Dialect, enabled: bool
) -> dict[str, Any]:
    """`chat_template_kwargs` that turn reasoning on or off; the client's own go before them,
    where they are passed through."""
    # Templates know one name or the other.
    switches = {"enable_thinking": enabled, "thinking": enabled}
    own = (
        parameters.get("chat_template_kwargs")
        if "chat_template_kwargs" in dialect.passthrough
        else None
    )
    return {**switches, **own} if isinstance(own, dict) else switches


def _reasoning_start(parameters: dict[str, Any], history: Sequence[Item], dialect: Dialect) -> int:
    """The position in the history from which on the model gets its reasoning back.

    Normally after the last message of the user; the start where the client sets `reasoning.context:
    all_turns`.
    """
    if dialect.reasoning_back == "none":
        return len(history)
    if parameters.get("reasoning", {}).get("context") == "all_turns":
        return 0
    after_users = (
        position
        for position in range(len(history), 0, -1)
        if history[position - 1].get("role") == "user"
    )
    return next(after_users, 0)


def _logprobs(parameters: dict[str, Any]) -> dict[str, Any]:
    if not wants_logprobs(parameters):
        return {}
    count = parameters.get("top_logprobs", 0)
    return {"logprobs": True, "top_logprobs": count} if count else {"logprobs": True}


def _without_fields(body: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The body of a chat request without these fields: its own, and those of its messages, of the
    functions in it and of `json_schema` in `response_format`: what the setting `omit` wants."""
    inner = frozenset(names) - _NEVER_OMITTED
    kept = {name: value for name, value in body.items() if name not in names}
    kept["messages"] = [_without(message, inner) for message in body["messages"]]
    if "tools" in kept:
        kept["tools"] = [
            {**tool, "function": _without(tool["function"], inner)} for tool in kept["tools"]
        ]
    response_format = kept.get("response_format", {})
    if "json_schema" in response_format:
        schema = _without(response_format["json_schema"], inner)
        kept["response_format"] = {**response_format, "json_schema": schema}
    return kept


def _without(fields: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
