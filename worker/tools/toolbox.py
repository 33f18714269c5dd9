"""All tools of one response that this server runs, behind one face: who runs a call, within which limits, and what a failure becomes."""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from models.config.groups import ToolSettings
from models.errors import RunError
from models.wire.events import Item
from models.wire.json_input import clean_json
from models.wire.tools import WEB_SEARCH
from worker.tools.provider import (
    ToolCallError,
    ToolContext,
    ToolProvider,
    ToolProviderFactory,
    ToolResult,
)
from worker.tools.web_search import WebSearch
from worker.translation.items.server_calls import OpenCallFactory
from worker.translation.items.server_tools import ServerFunction, model_tool_names

logger = structlog.get_logger()

_PROVIDERS: dict[str, ToolProviderFactory] = dict.fromkeys(WEB_SEARCH, WebSearch)
"""type of a tool -> what makes its source; those of MCP servers come on demand"""

_CLOSE_TIMEOUT = 5.0
"""Seconds a source has to give back what it holds."""


class Toolbox:
    """The sources of one response. Nothing is connected before it is needed."""

    def __init__(
        self,
        tools: Sequence[Mapping[str, Any]],
        context: ToolContext,
        kinds: Mapping[str, ToolProviderFactory],
    ) -> None:
        """`tools` as the request names them; those that the client runs are none of ours, but their names are taken. `kinds`: type of a
        tool -> what makes its source."""
        self._limits: ToolSettings = context.settings.tools
        self._providers: list[ToolProvider] = [
            kinds[tool["type"]](tool, context) for tool in tools if tool["type"] in kinds
        ]
        self._client_names = frozenset(tool["name"] for tool in tools if "name" in tool)

    @classmethod
    async def of(cls, tools: Sequence[Mapping[str, Any]], context: ToolContext) -> "Toolbox":
        """The sources of these tools. What MCP takes, half a second of CPU and memory that most workers never need, is loaded beside the
        event loop for the first response that names a server."""
        if not any(tool["type"] == "mcp" for tool in tools):
            return cls(tools, context, _PROVIDERS)
        mcp = await asyncio.to_thread(importlib.import_module, "worker.tools.mcp")
        return cls(tools, context, {**_PROVIDERS, "mcp": mcp.McpToolProvider})

    def pending(self, history: Sequence[Item]) -> list[OpenCallFactory]:
        """What must be run before the model speaks, in the order of the tools; see `Source.due`."""
        return [opening for source in self._providers for opening in source.pending(history)]

    def server_functions(self) -> dict[str, ServerFunction]:
        """The name by which the model calls a function -> the function."""
        return model_tool_names(
            (function for source in self._providers for function in source.functions()),
            self._client_names,
        )

    def is_repeatable(self, item: Item) -> bool:
        """Whether the call may be run a second time."""
        source = self._provider_of(item)
        return source is not None and source.is_repeatable(item)

    async def run(self, item: Item) -> ToolResult | ToolCallError:
        """What the call gave, or why it could not be carried out. Raises RunError when the response cannot go on."""
        provider = self._provider_of(item)
        if provider is None:
            return ToolCallError("This tool is not available.")
        seconds = self._limits.time.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                result = await provider.run(item)
            return _clean(_limit_size(self._limits, result))
        except ToolCallError as refusal:
            return refusal
        except RunError:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            logger.exception(
                "tool_broke", item=item["id"], type=item["type"]
            )  # a library's own cancellation that got out
            return ToolCallError("The tool could not be run: the server had an error.")
        except TimeoutError:
            return ToolCallError(
                f"The tool did not answer within {seconds:g} s. What it was asked to do may or may not have happened."
            )
        except Exception:
            logger.exception("tool_broke", item=item["id"], type=item["type"])
            return ToolCallError("The tool could not be run: the server had an error.")

    async def close(self) -> None:
        """Closes every source, each within a few seconds."""
        await asyncio.gather(*(self._close_provider(source) for source in self._providers))

    async def _close_provider(self, provider: ToolProvider) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await provider.close()
        except TimeoutError:
            logger.warning("tool_lingers", source=type(provider).__name__)
        except Exception:
            logger.exception("tool_did_not_close", source=type(provider).__name__)

    def _provider_of(self, item: Item) -> ToolProvider | None:
        return next((source for source in self._providers if source.owns(item)), None)


def _limit_size(limits: ToolSettings, result: ToolResult) -> ToolResult:
    """The result with each text cut to what the model is told at most, and without images that are too large."""
    limited = {
        name: _truncate_texts(result.fields[name], limits.answer)
        for name in ("output", "error")
        if name in result.fields
    }
    answer = (
        result.tool_output
        if result.tool_output is None
        else _truncate_texts(result.tool_output, limits.answer)
    )
    if isinstance(answer, list):
        answer = _drop_large_images(limits.images, answer)
    return replace(result, fields={**result.fields, **limited}, tool_output=answer)


def _truncate_texts(value: Any, max_bytes: int) -> Any:
    """JSON with all its texts cut; what an image holds is no text."""
    if isinstance(value, str):
        return _truncate(value, max_bytes)
    if isinstance(value, list):
        return [_truncate_texts(entry, max_bytes) for entry in value]
    if isinstance(value, dict) and value.get("type") != "input_image":
        return {name: _truncate_texts(found, max_bytes) for name, found in value.items()}
    return value


def _drop_large_images(max_bytes: int, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts, with a word in the place of each image for which there is no room any more."""
    kept: list[dict[str, Any]] = []
    for part in parts:
        size = len(part.get("image_url", ""))
        kept.append(part if size <= max_bytes else {"type": "input_text", "text": _OMITTED})
        max_bytes -= size if size <= max_bytes else 0
    return kept


def _clean(result: ToolResult) -> ToolResult:
    """The result without what can be neither stored nor encoded: tools are as hostile as anybody."""
    return replace(
        result, fields=clean_json(result.fields), tool_output=clean_json(result.tool_output)
    )


def _truncate(text: str, max_bytes: int) -> str:
    encoded = text.encode()
    return (
        text
        if len(encoded) <= max_bytes
        else f"{encoded[:max_bytes].decode(errors='ignore')}\n{_OMITTED}"
    )


_OMITTED = "[The rest is left out: the tool's answer was too long.]"
