"""A response's parameters and history become one body of the Responses API, for an upstream that
offers it (docs/adr/0015).

The upstream stores nothing: it gets the whole conversation, `store: false`, and streams its answer.
The client's own tools, and those that the upstream runs, are sent unchanged. Tools of this server
are offered as functions, and calls of them are shown as calls of these.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from models.wire.checks.parameters import NATIVE_ONLY_PARAMETERS
from models.wire.encrypted_content import is_sealed_here, parse_tagged
from models.wire.events import Item
from models.wire.item_types import OUTPUTS
from models.wire.tools import (
    COMPUTERS,
    IMAGE_GENERATION,
    TOOL_SEARCH,
    WEB_SEARCH,
    is_own_code_tool,
    is_own_file_search,
)
from worker.translation.functions import matches_choice
from worker.translation.history.walk import (
    AnsweredServerCall,
    ClientCall,
    OtherItem,
    walk_history,
)
from worker.translation.request_parameters import (
    SAMPLING_PARAMETERS,
    add_passthrough,
    copy_parameters,
)
from worker.translation.tool_catalog import ToolCatalog

_COPIED_PARAMETERS = (
    "instructions",
    *SAMPLING_PARAMETERS,
    "max_output_tokens",
    "top_logprobs",
    "reasoning",
    "text",
    "service_tier",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
    *NATIVE_ONLY_PARAMETERS,
)
"""Sent as the client set them, and only then."""

_WITHOUT_ID = frozenset(("message", "function_call", "custom_tool_call", *OUTPUTS))
"""Types of items that need no id upstream. The upstream does not know our ids."""

_UPSTREAM_ID = re.compile(r"(ws|fs|ci|ig|cu|sh|lsh|apc|tsc|cmp|prog|rs|msg)_[A-Za-z0-9]{1,56}")
"""Ids that upstreams accept for items of these types."""
_OUR_ID = re.compile(r"[a-z]+_[0-9a-f]{32}")
"""The form of the ids that this server makes (models/ids.py). Upstreams make longer ones."""

_OWN_REASONING_FIELDS = frozenset(
    ("id", "status", "content", "encrypted_content", "turn", "sealed", "answer")
)
"""Fields of reasoning that are ours, or that only some of it has upstream."""

_OUTPUTS_WITH_STATUS = frozenset(("apply_patch_call_output",))
"""Types of outputs whose status is part of the result."""

_CLIENT_TOOLS = frozenset(
    ("function", "custom", "namespace", "tool_search", "local_shell", "apply_patch", *COMPUTERS)
)
"""Types of tools that the client runs."""


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """The upstream of a request, and what of the tools it may use."""

    upstream: str
    """Its name."""
    passthrough: Collection[str] = ()
    """Parameters that are sent under their own names."""
    searches: bool = False
    """This server runs web searches, so the upstream gets none of these tools."""
    calls_left: int | None = None
    """Tool calls that `max_tool_calls` still allows. With 0 the upstream gets only the tools that
    the client runs."""


def native_request(
    *,
    model: str,
    parameters: Mapping[str, Any],
    history: list[Item],
    tool_catalog: ToolCatalog,
    options: NativeOptions,
) -> dict[str, Any]:
    """The body for the upstream. It is always streamed and never stored there.

    `parameters`, `history` and `tool_catalog` are those of worker/translation/chat/request.py.
    """
    ours, calls_left = _own_types(parameters, options), options.calls_left
    items = _input_items(history, tool_catalog, options.upstream, ours)
    body: dict[str, Any] = {"model": model, "input": list(items), "stream": True, "store": False}
    copy_parameters(body, parameters, _COPIED_PARAMETERS)
    include = parameters.get("include", ())
    body["include"] = list(dict.fromkeys([*include, "reasoning.encrypted_content"]))
    functions = tool_catalog.server_functions if calls_left != 0 else {}
    functions = {name: each for name, each in functions.items() if each.tool["type"] in ours}
    offered = replace(tool_catalog, server_functions=functions)
    tools = _tools(
        parameters.get("tools", ()),
        offered,
        ours,
        allow_upstream_tools=calls_left != 0,
    )
    if tools:
        body["tools"] = tools
        if "tool_choice" in parameters:
            body["tool_choice"] = _tool_choice(parameters["tool_choice"], offered, ours)
        if calls_left and any(is_upstream_tool(tool) for tool in tools):
            body["max_tool_calls"] = calls_left
    add_passthrough(body, parameters, options.passthrough)
    return body


def is_upstream_tool(tool: Mapping[str, Any]) -> bool:
    """Whether the upstream itself runs this tool."""
    if tool["type"] == "shell":
        return bool(tool.get("environment", {"type": "local"})["type"] != "local")
    return tool["type"] not in _CLIENT_TOOLS


def _own_types(parameters: Mapping[str, Any], options: NativeOptions) -> frozenset[str]:
    """The types of the tools that this server runs, so that the upstream gets none of them."""
    named = {
        tool["type"]
        for tool in parameters.get("tools", ())
        if is_own_file_search(tool) or is_own_code_tool(tool)
    }
    return frozenset(("mcp", *(WEB_SEARCH if options.searches else ()), *named))


def _input_items(
    history: list[Item], tool_catalog: ToolCatalog, upstream: str, ours: Collection[str]
) -> Iterator[Item]:
    """The history as input, without our ids and without items that only this server understands."""
    of_upstream = {
        *("file_search_call", "code_interpreter_call", "image_generation_call"),
    } - {f"{kind}_call" for kind in ours}
    for entry in walk_history(history, tool_catalog.server_functions, of_upstream):
        if isinstance(entry, AnsweredServerCall):
            yield entry.call
            yield {
                "type": "function_call_output",
                "call_id": entry.call["call_id"],
                "output": entry.output["output"],
            }
        else:
            yield from _client_items(entry, upstream, ours)


def _client_items(
    entry: ClientCall | OtherItem, upstream: str, ours: Collection[str]
) -> Iterator[Item]:
    item = entry.item
    kind = item["type"]
    if isinstance(entry, ClientCall):
        yield _input_item(item)
    elif kind == "reasoning":
        yield from _reasoning_items(item, upstream)
    elif kind == "additional_tools":
        tools = [tool for tool in item["tools"] if tool["type"] not in ours]
        yield {**_input_item(item), "tools": tools}
    elif not kind.startswith("mcp_") and "turn" not in item:
        yield _input_item(item)


def _reasoning_items(item: Item, upstream: str) -> Iterator[Item]:
    """Reasoning, for the upstream that can read it.

    It has no id: the upstream refuses ids that are not its own, and needs none. Reasoning that is
    only text (of open models) is sent with its text; reasoning without text and encrypted content
    is left out.
    """
    kept = {name: value for name, value in item.items() if name not in _OWN_REASONING_FIELDS}
    encrypted = item.get("encrypted_content", "")
    if tagged := parse_tagged(encrypted):
        if tagged.upstream == upstream:
            yield {**kept, "encrypted_content": tagged.content}
    elif encrypted and not is_sealed_here(encrypted):
        yield {**kept, "encrypted_content": encrypted}
    elif item.get("content"):
        yield {"id": _private_id(item["id"]), **kept, "content": item["content"]}


def _input_item(item: Item) -> Item:
    """An item without the fields that upstreams refuse: ids in a wrong form, the status of items
    that a client writes."""
    hidden = {"turn", "answer", "sealed"}
    if item["type"] in _WITHOUT_ID or not _UPSTREAM_ID.fullmatch(item["id"]):
        hidden.add("id")
    if (
        item["type"] == "message"
        and item["role"] == "assistant"
        and _UPSTREAM_ID.fullmatch(item["id"])
    ):
        hidden.discard("id")
    elif item["type"] in ("message", "tool_search_call", "tool_search_output") or (
        item["type"] in OUTPUTS and item["type"] not in _OUTPUTS_WITH_STATUS
    ):
        hidden.add("status")
    kept = {name: value for name, value in item.items() if name not in hidden}
    if "id" in kept and (item["type"] != "image_generation_call" or item.get("result")):
        kept["id"] = _private_id(item["id"])
    return kept


def _private_id(item_id: str) -> str:
    """An id that names no object of the upstream's account: ours, or one that is made from the
    client's, which is always the same."""
    if _OUR_ID.fullmatch(item_id):
        return item_id
    prefix = item_id.partition("_")[0]
    return f"{prefix}_{hashlib.sha256(item_id.encode()).hexdigest()[:32]}"


def _tools(
    tools: Collection[Mapping[str, Any]],
    tool_catalog: ToolCatalog,
    ours: Collection[str],
    *,
    allow_upstream_tools: bool,
) -> list[dict[str, Any]]:
    """The client's tools and the upstream's own, unchanged, then the functions that this server
    runs."""
    passed_on = [dict(tool) for tool in tools if tool["type"] not in ours]
    has_search = any(tool["type"] == TOOL_SEARCH for tool in passed_on)
    server_functions = [
        {
            "type": "function",
            "name": name,
            **function.to_json(),
            "strict": False,
            **({"defer_loading": True} if has_search and function.deferred else {}),
        }
        for name, function in tool_catalog.server_functions.items()
        # the upstream has the tool itself
        if not function.is_tool_search and function.tool["type"] != IMAGE_GENERATION
    ]
    return [
        *(tool for tool in passed_on if allow_upstream_tools or not is_upstream_tool(tool)),
        *server_functions,
    ]


def _tool_choice(
    choice: str | dict[str, Any], tool_catalog: ToolCatalog, ours: Collection[str]
) -> str | dict[str, Any]:
    """The client's choice, with this server's functions in the place of the tools that this
    server runs."""
    if isinstance(choice, str):
        return choice
    if choice["type"] == "allowed_tools":
        allowed = [
            tool for entry in choice["tools"] for tool in _chosen_tools(entry, tool_catalog, ours)
        ]
        return {**choice, "tools": allowed} if allowed else "none"
    tools = _chosen_tools(choice, tool_catalog, ours)
    return (
        tools[0]
        if len(tools) == 1
        else {"type": "allowed_tools", "mode": "required", "tools": tools}
    )


def _chosen_tools(
    entry: dict[str, Any], tool_catalog: ToolCatalog, ours: Collection[str]
) -> list[dict[str, Any]]:
    """The tools that one entry of a choice means for the upstream."""
    if entry["type"] not in ours:
        return [entry]
    return [
        {"type": "function", "name": name}
        for name, function in tool_catalog.server_functions.items()
        if matches_choice(function.tool, entry)
    ]
