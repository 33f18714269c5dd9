"""Upstreams that refuse as vendors do, by the rules that public reports quote, and answer the rest
like a model with every feature.

    model = fake.script([strict(MISTRAL)])
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.support.api import JSON
from tests.support.fake_upstream import (
    Exchange,
    Script,
    Step,
    call,
    done,
    error_body,
    finish,
    reasoning,
    reply,
    status,
    text,
    usage,
)

Rule = Callable[[JSON], str | None]
"""A body of a chat request -> the words with which it is refused."""


def strict(rules: Sequence[Rule], refusal_status: int = 400) -> Step:
    """Refuses what breaks one of the rules, and answers everything else. Has no Responses API."""

    async def step(exchange: Exchange) -> None:
        body = exchange.request.body
        if not exchange.request.path.endswith("/chat/completions"):
            await status(404, {"detail": "Not Found"})(exchange)
            return
        refusals = [words for rule in rules if (words := rule(body)) is not None]
        if refusals:
            envelope = error_body(refusals[0], "invalid_request_error")
            await status(refusal_status, envelope)(exchange)
            return
        for inner in _answer(body):
            await inner(exchange)

    return step


def _answer(body: JSON) -> Script:
    """What a capable model writes."""
    limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 100)
    last = body["messages"][-1]
    words = json.dumps(last["content"])
    if "one hundred" in words:
        return [text("one two"), finish("length"), usage(5, limit), done()]
    if body.get("tools") and body.get("tool_choice") != "none" and last["role"] != "tool":
        name = body["tools"][0]["function"]["name"]
        cities = ["Paris", "Rome"] if "Rome" in words else ["Paris"]
        calls = [
            call(index, f"call_{index}", name, json.dumps({"city": city}))
            for index, city in enumerate(cities)
        ]
        return [*calls, finish("tool_calls"), usage(), done()]
    if "Ada" in words:
        return reply('{"name": "Ada",', ' "age": 36}')
    if "colour" in words:
        return reply("Red.")
    return [reasoning("Hm."), *reply("one, ", "two")]


# Rules.


def field_is_forbidden(*names: str) -> Rule:
    """Mistral's and others' words for a field that they do not know (openclaude#739)."""

    def rule(body: JSON) -> str | None:
        known = next((name for name in names if name in body), None)
        return None if known is None else f"extra_forbidden: body.{known}: not permitted"

    return rule


def texts_are_strings(body: JSON) -> str | None:
    """gpt-load#743."""
    for message in body["messages"]:
        content = message.get("content")
        if isinstance(content, list) and all(part["type"] == "text" for part in content):
            return "content must be a string"
    return None


def no_user_after_tool(body: JSON) -> str | None:
    """zed#37021."""
    after = _pairs(body)
    return "Unexpected role 'user' after role 'tool'" if ("tool", "user") in after else None


def last_role_is_no_assistant(body: JSON) -> str | None:
    """rig#1130."""
    wanted = "Expected last role User or Tool (or Assistant with prefix True) for serving"
    return wanted if body["messages"][-1]["role"] == "assistant" else None


def content_or_calls(body: JSON) -> str | None:
    """Mistral's rule for assistants, and for fields that it does not know."""
    for message in body["messages"]:
        if message["role"] != "assistant":
            continue
        if not message.get("content") and not message.get("tool_calls"):
            return "Assistant message must have either content or tool_calls, but not none."
        if unknown := message.keys() - {"role", "content", "tool_calls", "prefix"}:
            return f"extra_forbidden: messages.{min(unknown)}"
    return None


def roles_alternate(body: JSON) -> str | None:
    """perplexityai/api-discussion#265."""
    pairs = [pair for pair in _pairs(body) if pair != ("tool", "tool")]
    first = next(message for message in body["messages"] if message["role"] != "system")
    if first["role"] == "assistant" or any(
        second == "system" or (before == "assistant") == (second == "assistant")
        for before, second in pairs
        if before != "system"
    ):
        return (
            "After the (optional) system message(s), user or tool message(s) should alternate with "
            "assistant message(s)."
        )
    return None


def no_blank_text(body: JSON) -> str | None:
    """hermes-agent#55092, OpenHands#5339."""
    for number, message in enumerate(body["messages"]):
        content = message.get("content")
        texts = (
            [content]
            if isinstance(content, str)
            else [part.get("text", "x") for part in content or ()]
        )
        if any(not text.strip() for text in texts):
            return (
                f"The text field in the ContentBlock object at messages.{number}.content.0 is "
                "blank. Add text to the text field, and try again."
            )
    return None


def tools_for_calls(body: JSON) -> str | None:
    """litellm#40735."""
    calls = any("tool_calls" in message for message in body["messages"])
    if calls and "tools" not in body:
        return "Bedrock doesn't support tool calling without `tools=` param specified."
    return None


def same_strictness(body: JSON) -> str | None:
    """code_puppy#368, Roo-Code#10334."""
    values = {tool["function"].get("strict", False) for tool in body.get("tools", ())}
    return "Tools with mixed values for 'strict' are not allowed." if len(values) > 1 else None


def openai_tools(body: JSON) -> str | None:
    """openai-agents-python#454, and the limits of the API reference."""
    for tool in body.get("tools", ()):
        function = tool["function"]
        problem = _schema_problem(function["parameters"], ())
        if problem:
            return f"Invalid schema for function '{function['name']}': {problem}"
        if re.fullmatch("[a-zA-Z0-9_-]{1,64}", function["name"]) is None:
            return f"Invalid 'tools[0].function.name': '{function['name']}'"
        if len(function.get("description", "")) > 1024:
            return "Expected a string with maximum length 1024"
    return None


def _schema_problem(schema: Any, place: tuple[str, ...]) -> str | None:
    if any(value is None for name, value in schema.items() if name != "default"):
        return f"In context={place}, None is not of the right type"
    if schema.get("type") == "array" and "items" not in schema:
        return f"In context={place}, array schema missing items."
    if not place and (schema.get("type") != "object" or "properties" not in schema):
        return "object schema missing properties."
    inner = schema.get("properties", {})
    problems = (_schema_problem(value, (*place, name)) for name, value in inner.items())
    return next((problem for problem in problems if problem), None)


def gemini_schemas(body: JSON) -> str | None:
    """llmgateway#1763, symfony/ai#2037, new-api#1037."""
    unknown = {"$schema", "additionalProperties", "propertyNames", "const", "exclusiveMinimum"}
    answer = body.get("response_format", {}).get("json_schema", {}).get("schema")
    schemas = [answer, *(tool["function"]["parameters"] for tool in body.get("tools", ()))]
    if found := unknown.intersection(key for schema in schemas for key in _keys(schema)):
        return f'Invalid JSON payload received. Unknown name "{min(found)}"'
    for tool in body.get("tools", ()):
        if tool["function"]["name"][0].isdigit():
            return "Invalid function name. Must start with a letter or an underscore."
    return None


def arguments_are_objects(body: JSON) -> str | None:
    """vllm#48922: the template parses them."""
    for message in body["messages"]:
        for made in message.get("tool_calls", ()):
            try:
                parsed = json.loads(made["function"]["arguments"])
            except ValueError:
                parsed = None
            if not isinstance(parsed, dict):
                return "Invalid function arguments: a JSON object is expected"
    return None


def reasoning_on_every_assistant(body: JSON) -> str | None:
    """DeepSeek (hermes-agent#15478, #17341)."""
    for number, message in enumerate(body["messages"]):
        if message["role"] == "assistant" and not message.get("reasoning_content"):
            return f"Missing `reasoning_content` field in the assistant message at index {number}"
    return None


def choice_is_a_string(body: JSON) -> str | None:
    """lmstudio-bug-tracker#670."""
    if isinstance(body.get("tool_choice"), dict):
        return "Invalid tool_choice type: 'object'. Supported string values: none, auto, required"
    return None


def choice_is_auto(body: JSON) -> str | None:
    """java.agentscope.io (glm)."""
    return "tool_choice: only auto" if body.get("tool_choice", "auto") != "auto" else None


def _pairs(body: JSON) -> list[tuple[str, str]]:
    roles = [message["role"] for message in body["messages"]]
    return list(itertools.pairwise(roles))


def _keys(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema
        for value in schema.values():
            yield from _keys(value)
    if isinstance(schema, list):
        for value in schema:
            yield from _keys(value)


_COMMON = (texts_are_strings, arguments_are_objects)

STRICT_UPSTREAMS: dict[str, tuple[Rule, ...]] = {
    "mistral": (
        *_COMMON,
        field_is_forbidden("max_completion_tokens", "store", "metadata"),
        no_user_after_tool,
        last_role_is_no_assistant,
        content_or_calls,
    ),
    "perplexity": (*_COMMON, field_is_forbidden("max_completion_tokens"), roles_alternate),
    "bedrock": (*_COMMON, no_blank_text, tools_for_calls),
    "cerebras": (*_COMMON, same_strictness, field_is_forbidden("parallel_tool_calls")),
    "gemini": (*_COMMON, gemini_schemas),
    "azure": (*_COMMON, openai_tools),
    "deepseek": (
        *_COMMON,
        field_is_forbidden("max_completion_tokens"),
        reasoning_on_every_assistant,
    ),
    "kimi": (*_COMMON, reasoning_on_every_assistant),
    "lm-studio": (*_COMMON, field_is_forbidden("max_completion_tokens"), choice_is_a_string),
    "zhipu": (
        *_COMMON,
        field_is_forbidden("stream_options", "max_completion_tokens"),
        choice_is_auto,
    ),
}
"""The rules of an upstream, by the preset with which it accepts everything."""
