"""A request of Anthropic's Messages API becomes the body of a create. Pure.

What no field of a response can express is left out; what is left out of what a client may rely on
is named in a header of the answer (models/wire/without_effect.py).

The tools of Anthropic's API become tools of a response. Pure.

Tools that the client runs and whose schema only Anthropic's models know (a shell, an editor, a
computer) become functions with the schema that Anthropic documents.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from features.messages.content import MESSAGES, SYSTEM, input_items, instructions_of
from models.errors import InvalidRequest
from models.wire.api_schema import Schema, SchemaScope
from models.wire.checks import basic
from models.wire.checks.faults import missing, not_an_object, shorten, wrong_type
from models.wire.response import SEALED_REASONING
from models.wire.without_effect import shown_name

Json = dict[str, Any]

_TEXT = basic.String()
_NAME = basic.String(non_empty=True, at_most=128, pattern="[a-zA-Z0-9_-]+")
_SIZE = basic.Integer(1, 100_000)
_CUSTOM = basic.Record(
    {"name": _NAME, "input_schema": basic.JsonObject()},
    {"description": _TEXT, "strict": basic.Boolean()},
)
_KNOWN = basic.Record(
    {"name": _NAME},
    {"display_width_px": _SIZE, "display_height_px": _SIZE, "strict": basic.Boolean()},
)
_DOMAINS = basic.Array(_TEXT)
_SEARCH = basic.Record(
    {},
    {
        "allowed_domains": _DOMAINS,
        "blocked_domains": _DOMAINS,
        "max_uses": basic.Integer(1, 1000),
        "user_location": basic.JsonObject(),
    },
)
TOOL_CHOICE = basic.Tagged(
    {
        "auto": basic.Record({}, {"disable_parallel_tool_use": basic.Boolean()}),
        "any": basic.Record({}, {"disable_parallel_tool_use": basic.Boolean()}),
        "tool": basic.Record({"name": _NAME}, {"disable_parallel_tool_use": basic.Boolean()}),
        "none": basic.Record({}),
    }
)
"""The check of `tool_choice`."""
_DATED = re.compile(r"([a-z_]+)_20\d{6}")
_TYPES: Mapping[str, Json] = {
    "text": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "integers": {"type": "array", "items": {"type": "integer"}},
}


def _schema(fields: Mapping[str, str], action: str = "", *actions: str) -> Json:
    """An object with these fields: type -> names. `actions`: what the required field `action` may
    be."""
    properties: Json = {action: {"type": "string", "enum": list(actions)}} if action else {}
    for kind, names in fields.items():
        properties |= dict.fromkeys(names.split(), _TYPES[kind])
    required = {"required": [action]} if action else {}
    return {"type": "object", "properties": properties, **required}


_EDITS = ("command", "view", "create", "str_replace", "insert")
_OF_EDITS = {
    "text": "path file_text old_str new_str insert_text",
    "integer": "insert_line",
    "integers": "view_range",
}
_CLIENT_TOOLS: Mapping[str, tuple[str, Json]] = {
    "bash": (
        "Run a command in a persistent bash session. `restart` starts a new session.",
        _schema({"text": "command", "boolean": "restart"}),
    ),
    "text_editor": (
        "View, create and edit text files. For `str_replace`, `old_str` must occur exactly once.",
        _schema(_OF_EDITS, *_EDITS),
    ),
    "computer": (
        "Use the mouse and the keyboard of a computer, and take screenshots.",
        _schema(
            {
                "integers": "coordinate start_coordinate region",
                "text": "text scroll_direction",
                "integer": "scroll_amount",
                "number": "duration",
            },
            *("action", "screenshot", "left_click", "right_click", "middle_click", "double_click"),
            *("triple_click", "left_click_drag", "left_mouse_down", "left_mouse_up", "mouse_move"),
            *("cursor_position", "type", "key", "hold_key", "scroll", "wait", "zoom"),
        ),
    ),
}
"""Beginning of a type -> the description for the model, and the schema."""


class _Tool(basic.Check):
    """A tool as a tool of a response."""

    def __call__(self, value: Any, where: str, /) -> Json:
        kind = basic.require_object(value, where).get("type") or "custom"
        if type(kind) is not str:
            raise wrong_type(f"{where}.type", "a string", kind)
        if kind == "custom":
            return _function(_CUSTOM(value, where))
        dated = _DATED.fullmatch(kind)
        name = "" if dated is None else dated[1]
        if name in _CLIENT_TOOLS:
            return _client_tool(name, _KNOWN(value, where))
        if name == "web_search":
            return _web_search(_SEARCH(value, where))
        message = (
            f"The tool '{shorten(kind)}' of '{where}' is not supported here. Supported are "
            "tools with an 'input_schema', bash_…, text_editor_…, computer_… and "
            "web_search_…; offer another one as a tool with an 'input_schema' that you run."
        )
        raise InvalidRequest(message, param=f"{where}.type", code="unsupported_parameter")

    def schema(self, _scope: SchemaScope, /) -> Schema:
        return {"type": "object"}


TOOLS = basic.Array(_Tool())
"""The check of `tools`: its result is for a response."""


def _function(tool: Json) -> Json:
    # Without `strict` OpenAI's own models would take a schema as a strict one.
    named: Json = {name: tool[name] for name in ("name", "description") if name in tool}
    schema, strict = tool["input_schema"], tool.get("strict", False)
    return {"type": "function", **named, "parameters": schema, "strict": strict}


def _client_tool(kind: str, tool: Json) -> Json:
    description, schema = _CLIENT_TOOLS[kind]
    if "display_width_px" in tool and "display_height_px" in tool:
        size = f"{tool['display_width_px']} x {tool['display_height_px']}"
        description = f"{description} The screen has {size} pixels."
    return _function({"name": tool["name"], "description": description, "input_schema": schema})


def _web_search(tool: Json) -> Json:
    filters = {name: tool[name] for name in ("allowed_domains", "blocked_domains") if name in tool}
    place = {"user_location": tool["user_location"]} if "user_location" in tool else {}
    uses = {"max_uses": tool["max_uses"]} if "max_uses" in tool else {}
    return {"type": "web_search", **({"filters": filters} if filters else {}), **place, **uses}


def tool_parameters(tools: list[Json], choice: Json | None) -> Json:
    """The parameters of a response for checked tools and the checked choice of one."""
    if not tools:
        return {}
    parameters: Json = {"tools": tools}
    searches = [tool for tool in tools if tool["type"] == "web_search"]
    limits = [tool.pop("max_uses") for tool in searches if "max_uses" in tool]
    if limits:
        parameters["max_tool_calls"] = limits[0]
    if searches:
        parameters["include"] = ["web_search_call.action.sources"]
    if choice is None:
        return parameters
    if choice.get("disable_parallel_tool_use"):
        parameters["parallel_tool_calls"] = False
    return {**parameters, "tool_choice": _choice(choice, bool(searches))}


def _choice(choice: Json, has_search: bool) -> Any:
    match choice["type"]:
        case "any":
            return "required"
        case "tool" if has_search and choice["name"] == "web_search":
            return {"type": "web_search"}
        case "tool":
            return {"type": "function", "name": choice["name"]}
        case kind:
            return kind


_MAX_INTEGER = 2**31 - 1
_LEAST_OUTPUT = 16
"""Tokens: the least that a create may ask for."""
_LONGEST_USER = 512
"""Characters of a value of `metadata`."""
_DISPLAY = {"display": basic.Choice("summarized", "omitted")}
_JSON_FORMAT = basic.Tagged({"json_schema": basic.Record({"schema": basic.JsonObject()})})

MARK = {"api": "messages"}
"""The metadata by which operators recognise such a response."""

REQUIRED: dict[str, basic.Check] = {
    "model": basic.String(non_empty=True, at_most=512),
    "messages": MESSAGES,
    "max_tokens": basic.Integer(1, _MAX_INTEGER),
}
"""Parameters of `/v1/messages` that must be there -> their checks."""
OPTIONAL: dict[str, basic.Check] = {
    "system": SYSTEM,
    "tools": TOOLS,
    "tool_choice": TOOL_CHOICE,
    "stream": basic.Boolean(),
    "temperature": basic.Number(0, 2),
    "top_p": basic.Number(0, 1),
    "top_k": basic.Integer(0, _MAX_INTEGER),
    "stop_sequences": basic.Array(basic.String(non_empty=True)),
    "thinking": basic.Tagged(
        {
            "enabled": basic.Record({"budget_tokens": basic.Integer(1, _MAX_INTEGER)}, _DISPLAY),
            "adaptive": basic.Record({}, _DISPLAY),
            "between_tools": basic.Record({}),
            "disabled": basic.Record({}),
        }
    ),
    "output_config": basic.Record(
        {},
        {"effort": basic.Choice("low", "medium", "high", "xhigh", "max"), "format": _JSON_FORMAT},
    ),
    "output_format": _JSON_FORMAT,
    "metadata": basic.Record({}, {"user_id": basic.String()}),
    "service_tier": basic.Choice("auto", "standard_only"),
}
"""The others that have an effect -> their checks."""
WITHOUT_EFFECT = frozenset(("cache_control", "context_management", "diagnostics", "betas"))
"""Parameters that nobody misses."""
REFUSED = {
    "mcp_servers": "send MCP servers with POST /v1/responses, as tools of the type 'mcp'",
    "container": "code runs with POST /v1/responses and the tool 'code_interpreter'",
}
"""Parameters without which the request would mean something else -> what to do."""
_NOT_COUNTED = ("include", "max_tool_calls")
"""Parameters of a create that a count does not have."""
_EFFORTS = ((4_096, "low"), (16_384, "medium"), (_MAX_INTEGER, "high"))
"""Largest budget of thinking, in tokens -> the effort."""


class Thinking(Enum):
    """What a client gets of the model's reasoning."""

    HIDDEN = "hidden"
    """Nothing: it has not asked for it, and many clients read the first block as the text."""
    SIGNED = "signed"
    """Empty blocks with signatures."""
    SHOWN = "shown"


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """The create that a request becomes."""

    body: Json
    stop: list[str]
    """Where the model shall stop. No parameter of a create says it."""
    thinking: Thinking
    ignored: list[str]
    """The parameters that have no effect."""


def message_request(
    body: Any, passed: Collection[str], *, background: bool = False
) -> MessageRequest:
    """The create of a decoded body. `passed`: further parameters that the model's upstream takes
    (models/config/routes.py, `accepted_parameters`). Raises InvalidRequest."""
    given = _checked(body)
    create = _common_parameters(given)
    thinking = _thinking(given.get("thinking", {"type": "disabled"}))
    reasoning = _reasoning(given, thinking)
    create |= {"reasoning": reasoning} if reasoning else {}
    if thinking is not Thinking.HIDDEN:
        create["include"] = [*create.get("include", ()), SEALED_REASONING]
    create["max_output_tokens"] = max(given["max_tokens"], _LEAST_OUTPUT)
    create |= {name: given[name] for name in ("temperature", "top_p", "stream") if name in given}
    ignored = [name for name in body if name not in given and _is_missed(name, body[name])]
    if "top_k" in given and "top_k" in passed:
        create["top_k"] = given["top_k"]
    elif "top_k" in given:
        ignored.append("top_k")
    if given.get("service_tier") == "standard_only":
        create["service_tier"] = "default"
    user = given.get("metadata", {}).get("user_id", "")[:_LONGEST_USER]
    create["metadata"] = MARK | ({"user_id": user} if user else {})
    if background:
        create["background"] = True
    return MessageRequest(
        create, given.get("stop_sequences", []), thinking, list(map(shown_name, ignored))
    )


def count_request(body: Any) -> Json:
    """The create whose input tokens are counted. Raises InvalidRequest."""
    without_limit = {"max_tokens": 1, **body} if type(body) is dict else body
    create = _common_parameters(_checked(without_limit))
    return {"store": False, **{name: create[name] for name in create if name not in _NOT_COUNTED}}


def _checked(body: Any) -> Json:
    """The known parameters. Raises InvalidRequest."""
    if type(body) is not dict:
        raise not_an_object(body)
    for name, instead in REFUSED.items():
        if body.get(name):
            message = f"'{name}' is not supported here: {instead}."
            raise InvalidRequest(message, param=name, code="unsupported_parameter")
    if body.get("thread"):
        # The tool runners of the SDKs ask for a thread first. By this code they know what to do.
        message = "'thread' is not supported here: send the whole conversation."
        raise InvalidRequest(message, param="thread", code="thread_unsupported_request")
    for name in REQUIRED:
        if body.get(name) is None:
            raise missing(name)
    checks = REQUIRED | OPTIONAL
    return {
        name: check(body[name], name)
        for name, check in checks.items()
        if body.get(name) is not None
    }


def _is_missed(name: str, value: Any) -> bool:
    return value is not None and name not in WITHOUT_EFFECT


def _common_parameters(given: Mapping[str, Any]) -> Json:
    """Those that a count has too."""
    create: Json = {"model": given["model"], "input": input_items(given["messages"])}
    if instructions := instructions_of(given.get("system", "")):
        create["instructions"] = instructions
    create |= tool_parameters(given.get("tools", []), given.get("tool_choice"))
    wanted = given.get("output_config", {}).get("format") or given.get("output_format")
    if wanted is not None:
        named = {"type": "json_schema", "name": "output", "strict": True}
        create["text"] = {"format": named | {"schema": wanted["schema"]}}
    return create


def _thinking(wanted: Mapping[str, Any]) -> Thinking:
    if wanted["type"] == "disabled":
        return Thinking.HIDDEN
    return Thinking.SIGNED if wanted.get("display") == "omitted" else Thinking.SHOWN


def _reasoning(given: Mapping[str, Any], thinking: Thinking) -> Json:
    """`reasoning` of the create. Without thinking the model is left to its own: many upstreams
    refuse an effort of "none"."""
    effort = given.get("output_config", {}).get("effort")
    budget = given.get("thinking", {}).get("budget_tokens")
    if effort is None and budget is not None:
        effort = next(name for most, name in _EFFORTS if budget <= most)
    reasoning: Json = {} if effort is None else {"effort": effort}
    return reasoning | ({"summary": "auto"} if thinking is Thinking.SHOWN else {})
