"""A response's parameters and history become the body of a Chat Completions request: its messages,
the fields or instructions that ask for JSON, and its tools, in the form that one upstream accepts.
"""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from models.config.dialect import Api, StructuredOutput
from models.wire.events import Item
from models.wire.response import STOP
from worker.translation.chat.messages import chat_messages
from worker.translation.functions import omit_keywords
from worker.translation.request_parameters import (
    SAMPLING_PARAMETERS,
    Dialect,
    add_passthrough,
    copy_parameters,
    wants_logprobs,
)
from worker.translation.returned_content import ReturnedCalls
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
            instructions_for(parameters, dialect),
            history,
            dialect,
            tool_catalog,
            reasoning_start(parameters, history, dialect),
            returned_calls,
        ),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    copy_parameters(body, parameters, SAMPLING_PARAMETERS)
    if STOP in parameters:
        body["stop"] = parameters[STOP]
    if "max_output_tokens" in parameters:
        body[dialect.max_tokens_field] = parameters["max_output_tokens"]
    body.update(effort_fields(parameters, dialect))
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


def instructions_for(parameters: dict[str, Any], dialect: Dialect) -> str | None:
    """The client's instructions, and those about the output format that no field of the
    upstream's API can express."""
    texts = [
        parameters.get("instructions"),
        format_instructions(parameters.get("text", {}), dialect.structured_output, dialect.api),
    ]
    present = [text for text in texts if text is not None]
    return "\n\n".join(present) if present else None


def effort_fields(parameters: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
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


def reasoning_start(parameters: dict[str, Any], history: Sequence[Item], dialect: Dialect) -> int:
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


_JSON_ONLY = "Answer with JSON alone: no word before or after it, and no code fence around it."

_JSON_OBJECT_FIELDS = {"response_format": {"type": "json_object"}}


def format_fields(
    text: dict[str, Any], mode: StructuredOutput, omitted_keywords: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of a chat request for the `text` of a create request; the schema without these
    keywords."""
    wanted = text.get("format", {})
    match wanted.get("type"), mode:
        case ("json_schema", "json_schema"):
            schema = {
                name: wanted[name]
                for name in ("name", "schema", "strict", "description")
                if name in wanted
            }
            if omitted_keywords:
                schema["schema"] = omit_keywords(schema["schema"], omitted_keywords)
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case ("json_schema", "guided_json"):
            return {"guided_json": wanted["schema"]}
        case ("json_schema", "json_object"):
            return _JSON_OBJECT_FIELDS
        case ("json_object", other) if other != "prompt":
            return _JSON_OBJECT_FIELDS
        case _:
            return {}


def format_instructions(
    text: dict[str, Any], mode: StructuredOutput, api: Api = "chat"
) -> str | None:
    """Instructions for the model about the format; None if the request's fields express all of
    it. The Messages API has a field for strict schemas alone."""
    wanted = text.get("format", {})
    kind = wanted.get("type")
    if api == "messages" and not (kind == "json_schema" and wanted.get("strict")):
        mode = "prompt"
    if kind == "json_object" and mode == "prompt":
        return f"{_JSON_ONLY} It must be one JSON object."
    if kind != "json_schema" or mode not in ("json_object", "prompt"):
        return None
    description = f" {wanted['description']}" if wanted.get("description") else ""
    schema = msgspec.json.encode(wanted["schema"]).decode()
    return (
        f"{_JSON_ONLY} It is called '{wanted['name']}'.{description} "
        f"It must obey this JSON Schema:\n{schema}"
    )


_ANY_ARGUMENTS = {"type": "object", "properties": {}}


def chat_tools(
    tool_catalog: ToolCatalog, messages: Sequence[dict[str, Any]], dialect: Dialect
) -> dict[str, Any]:
    """`tools` and `tool_choice`; empty where there are none. `messages` are those of the request:
    some upstreams want the functions of calls in them."""
    fields = _chosen(tool_catalog.to_json(), dialect)
    if not fields and dialect.tools_for_calls and (names := _called_names(messages)):
        stubs = [
            {"type": "function", "function": {"name": name, "parameters": _ANY_ARGUMENTS}}
            for name in names
        ]
        return {"tools": stubs, "tool_choice": "none"}
    if "tools" in fields:
        fields["tools"] = [
            {**tool, "function": _function(tool["function"], dialect)} for tool in fields["tools"]
        ]
    return fields


def _chosen(fields: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The tools and a `tool_choice` that the upstream accepts. A choice that it does not accept is
    expressed by the tools: of a named function, that one alone is offered; with `none`, no tool."""
    choice = fields.get("tool_choice")
    if choice is None or dialect.tool_choice == "named" or choice == "auto":
        return fields
    tools = fields["tools"]
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        tools = [tool for tool in tools if tool["function"]["name"] == name]
        choice = "required"
    if dialect.tool_choice == "required":
        return {"tools": tools, "tool_choice": choice}
    return {} if choice == "none" else {"tools": tools}


def _called_names(messages: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the functions that the messages call, each once."""
    return list(
        dict.fromkeys(
            call["function"]["name"]
            for message in messages
            for call in message.get("tool_calls", ())
        )
    )


def _function(function: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    changed = dict(function)
    description = changed.get("description")
    if description is not None and not description.strip():
        del changed["description"]  # some upstreams want at least one character
    elif description is not None and dialect.description_limit is not None:
        changed["description"] = _cut(description, dialect.description_limit)
    if dialect.strict_tools == "all":
        changed["strict"] = True
    elif dialect.strict_tools == "none":
        changed.pop("strict", None)
    if dialect.omit_from_schemas:
        changed["parameters"] = omit_keywords(changed["parameters"], dialect.omit_from_schemas)
    return changed


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
