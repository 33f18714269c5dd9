"""A response's parameters and history become one body of the Responses API, for an upstream that speaks it (docs/adr/0015). Pure.

The upstream keeps nothing: it gets all that was said, `store: false`, and a stream to send. Our client's own tools, and those that the
upstream is to run, go through as they are; what this server runs is offered as functions, and calls of it are told as calls of these.
"""

import base64
import binascii
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from models.wire.events import Item
from models.wire.item_types import OUTPUTS
from models.wire.pairing import is_call, is_output, match_outputs
from models.wire.tools import WEB_SEARCH
from worker.translation.chat.request import NEVER_FORWARDED
from worker.translation.history.server_calls import (
    as_function_call,
    denied_call_output,
    server_call_output,
)
from worker.translation.items.server_calls import matches_choice, model_tool_name
from worker.translation.tool_catalog import ToolCatalog

_COPIED_PARAMETERS = (
    *(
        "instructions",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "max_output_tokens",
        "top_logprobs",
    ),
    *("reasoning", "text", "service_tier", "user", "safety_identifier", "prompt_cache_key"),
)
"""Sent as the client set them, and only then."""

_WITHOUT_ID = frozenset(("message", "function_call", "custom_tool_call", *OUTPUTS))
"""Items that need no id upstream. Ours would be a stranger's there."""

_UPSTREAM_ID = re.compile(r"(ws|fs|ci|ig|cu|sh|lsh|apc|tsc|cmp|prog|rs|msg)_[A-Za-z0-9]{1,56}")
"""Ids that upstreams take for what they are."""

_TAGGED_CONTENT = re.compile(r"bbu1\.([A-Za-z0-9_-]*)\.(.*)", re.DOTALL)
_SEALED_CONTENT = re.compile(r"bbs\d\.")
"""What this server sealed for itself (models/secrets.py)."""


def native_request(
    *,
    model: str,
    upstream: str,
    parameters: Mapping[str, Any],
    history: list[Item],
    tool_catalog: ToolCatalog,
    passthrough: Collection[str] = (),
    searches: bool = False,
    calls_left: int | None = None,
) -> dict[str, Any]:
    """The body for the upstream of this name, always streamed, never stored there.

    `parameters`, `history` and `offer` as worker/translation/chat/request.py takes them. `searches`: this server searches the web itself.
    `calls_left`: of what `max_tool_calls` allows; at 0 the upstream is offered none of its own tools any more.
    """
    body: dict[str, Any] = {
        "model": model,
        "input": list(_input_items(history, tool_catalog, upstream, searches=searches)),
        "stream": True,
        "store": False,
    }
    body.update((name, parameters[name]) for name in _COPIED_PARAMETERS if name in parameters)
    include = parameters.get("include", ())
    body["include"] = list(dict.fromkeys([*include, "reasoning.encrypted_content"]))
    tools = _tools(
        parameters.get("tools", ()),
        tool_catalog,
        searches=searches,
        allow_upstream_tools=calls_left != 0,
    )
    if tools:
        body["tools"] = tools
        body.update(
            (name, parameters[name]) for name in ("parallel_tool_calls",) if name in parameters
        )
        if "tool_choice" in parameters:
            body["tool_choice"] = _tool_choice(
                parameters["tool_choice"], tool_catalog, searches=searches
            )
        if calls_left and any(is_upstream_tool(tool) for tool in tools):
            body["max_tool_calls"] = calls_left
    for name in passthrough:
        if name in parameters and name not in body and name not in NEVER_FORWARDED:
            body[name] = parameters[name]
    return body


def is_upstream_tool(tool: Mapping[str, Any]) -> bool:
    """Whether the upstream itself runs this tool."""
    if tool["type"] == "shell":
        return bool(tool.get("environment", {"type": "local"})["type"] != "local")
    return tool["type"] not in _CLIENT_TOOLS


_CLIENT_TOOLS = frozenset(
    ("function", "custom", "namespace", "tool_search", "local_shell", "apply_patch")
)
"""Tools that the client runs."""


def tag_encrypted_content(upstream: str, encrypted: str) -> str:
    """An upstream's `encrypted_content` as it is stored and shown: with the name of the only one that can read it."""
    name = base64.urlsafe_b64encode(upstream.encode()).decode().rstrip("=")
    return f"bbu1.{name}.{encrypted}"


def _input_items(
    history: list[Item], tool_catalog: ToolCatalog, upstream: str, *, searches: bool
) -> Iterator[Item]:
    """The history as input: without our ids, calls without an answer, and what only this server understands."""
    answers = match_outputs(history)
    paired = {*answers, *answers.values()}
    requests = {item["id"]: item for item in history if item["type"] == "mcp_approval_request"}
    for position, item in enumerate(history):
        kind = item["type"]
        if (is_call(item) or is_output(item)) and position not in paired:
            continue
        if (answer := server_call_output(item)) is not None:
            yield from _server_call_items(item, answer["output"], tool_catalog)
        elif (
            kind == "mcp_approval_response"
            and not item["approve"]
            and item["approval_request_id"] in requests
        ):
            yield from _server_call_items(
                {**requests[item["approval_request_id"]], "type": "mcp_call"},
                denied_call_output(item)["output"],
                tool_catalog,
            )
        elif kind == "reasoning":
            yield from _reasoning_items(item, upstream)
        elif kind == "additional_tools":
            yield {
                "type": kind,
                "role": item["role"],
                "tools": [
                    tool for tool in item["tools"] if not (searches and tool["type"] in WEB_SEARCH)
                ],
            }
        elif not kind.startswith("mcp_") and "turn" not in item:
            yield _input_item(item)


def _server_call_items(item: Item, output: Any, tool_catalog: ToolCatalog) -> Iterator[Item]:
    """A call that this server ran, as the function call it was for the model, and what the model was told."""
    call = as_function_call(item, model_tool_name(item, tool_catalog.server_functions))
    yield call
    yield {"type": "function_call_output", "call_id": call["call_id"], "output": output}


def _reasoning_items(item: Item, upstream: str) -> Iterator[Item]:
    """Reasoning, for the one upstream that can read it. Without an id: another than the upstream's own would be refused, and none is fine.

    What only says its words (raw text, of open models) goes with them; what says nothing goes not at all.
    """
    told: Item = {"type": "reasoning", "summary": item["summary"]}
    encrypted = item.get("encrypted_content", "")
    if found := _TAGGED_CONTENT.fullmatch(encrypted):
        if _decode_upstream_name(found[1]) == upstream:
            yield {**told, "encrypted_content": found[2]}
    elif encrypted and not _SEALED_CONTENT.match(encrypted):
        yield {**told, "encrypted_content": encrypted}
    elif item.get("content"):
        yield {"id": item["id"], **told, "content": item["content"]}


def _decode_upstream_name(encoded: str) -> str | None:
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, ValueError):
        return None


def _input_item(item: Item) -> Item:
    """An item as it is, without what upstreams refuse: an id of the wrong form, a status where a client says something."""
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
    return {name: value for name, value in item.items() if name not in hidden}


_OUTPUTS_WITH_STATUS = frozenset(("apply_patch_call_output",))
"""Outputs whose status says how it went."""


def _tools(
    tools: Collection[Mapping[str, Any]],
    tool_catalog: ToolCatalog,
    *,
    searches: bool,
    allow_upstream_tools: bool,
) -> list[dict[str, Any]]:
    """The client's tools and the upstream's own as they were given, then the functions that this server runs."""
    theirs = [
        dict(tool)
        for tool in tools
        if tool["type"] != "mcp" and not (searches and tool["type"] in WEB_SEARCH)
    ]
    ours = []
    for name, function in tool_catalog.server_functions.items():
        described = {} if function.description is None else {"description": function.description}
        ours.append(
            {
                "type": "function",
                "name": name,
                **described,
                "parameters": dict(function.parameters),
                "strict": False,
            }
        )
    return [*(tool for tool in theirs if allow_upstream_tools or not is_upstream_tool(tool)), *ours]


def _tool_choice(
    choice: str | dict[str, Any], tool_catalog: ToolCatalog, *, searches: bool
) -> str | dict[str, Any]:
    """The client's choice, where it names tools that this server runs with the functions that stand for them."""
    if isinstance(choice, str):
        return choice
    if choice["type"] == "allowed_tools":
        return {
            **choice,
            "tools": [
                named
                for one in choice["tools"]
                for named in _chosen_tools(one, tool_catalog, searches=searches)
            ],
        }
    named = _chosen_tools(choice, tool_catalog, searches=searches)
    return (
        named[0]
        if len(named) == 1
        else {"type": "allowed_tools", "mode": "required", "tools": named}
    )


def _chosen_tools(
    one: dict[str, Any], tool_catalog: ToolCatalog, *, searches: bool
) -> list[dict[str, Any]]:
    if one["type"] != "mcp" and not (searches and one["type"] in WEB_SEARCH):
        return [one]
    return [
        {"type": "function", "name": name}
        for name, function in tool_catalog.server_functions.items()
        if matches_choice(function.tool, one)
    ]
