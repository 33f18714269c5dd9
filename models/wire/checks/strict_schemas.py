"""OpenAI's rules for strict schemas, for servers that ask for them (docs/output.md).

The other checks have found that each schema is one (models/wire/checks/json_schema.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from models.wire.checks.json_schema import require_format_schema, require_function_schema
from models.wire.events import Item
from models.wire.item_types import ADDS_TOOLS


def require_strict_schemas(
    parameters: Mapping[str, Any], items: Sequence[Item], where: str = "input"
) -> None:
    """Raises InvalidRequest for the first schema with `strict` that OpenAI would refuse: of
    `text.format`, or of a function among the tools, also those that items add.

    Both are checked already. `where` is the name of the list of items in the request.
    """
    text_format = parameters.get("text", {}).get("format", {})
    if text_format.get("strict"):
        require_format_schema(text_format, "text.format", strict=True)
    _require_strict_functions(parameters.get("tools", ()), "tools")
    for index, item in enumerate(items):
        if item["type"] in ADDS_TOOLS:
            _require_strict_functions(item["tools"], f"{where}[{index}].tools")


def _require_strict_functions(tools: Sequence[dict[str, Any]], where: str) -> None:
    for index, tool in enumerate(tools):
        place = f"{where}[{index}]"
        if tool["type"] == "namespace":
            _require_strict_functions(tool["tools"], f"{place}.tools")
        elif tool["type"] == "function" and tool.get("strict"):
            require_function_schema(tool, place, strict=True)
