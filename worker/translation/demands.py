"""What a request demands of the answer although some servers ignore it: a call (`tool_choice`), and
JSON (`text.format`). An answer without it is no failure (docs/output.md), but clients are to see
it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from models.wire.events import Item
from models.wire.item_types import CALLS
from models.wire.response import TEXT_FORMAT_UNMET, TOOL_CHOICE_UNMET

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
