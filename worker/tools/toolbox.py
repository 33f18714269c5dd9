"""All server tools of one response: finds the provider of a call, applies the limits, and turns
failures into results."""

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
from models.wire.tools import TOOL_SEARCH, WEB_SEARCH, callable_tools
from worker.tools.provider import (
    KeepsResults,
    ToolCallError,
    ToolContext,
    ToolProvider,
    ToolProviderFactory,
    ToolResult,
)
from worker.tools.web_search import WebSearch
from worker.translation.functions import ServerFunction, model_tool_names
from worker.translation.items.server_calls import OpenCallFactory

logger = structlog.get_logger()

OWN_TOOLS: Mapping[str, ToolProviderFactory] = dict.fromkeys(WEB_SEARCH, WebSearch)
"""Type of a tool -> what makes its provider. Features add theirs; MCP is loaded when it is
needed."""

_CLOSE_TIMEOUT = 5.0
"""Seconds that a provider has to close its connections."""


class Toolbox:
    """The providers of one response. They connect when they are needed."""

    def __init__(
        self,
        tools: Sequence[Mapping[str, Any]],
        context: ToolContext,
        kinds: Mapping[str, ToolProviderFactory],
    ) -> None:
        """`tools` are the request's tools. The names of client tools are not used for server tools.

        `kinds`: type of a tool -> what makes its provider.
        """
        self._limits: ToolSettings = context.settings.tools
        self._providers: list[ToolProvider] = [
            kinds[tool["type"]](tool, context) for tool in tools if tool["type"] in kinds
        ]
        self._client_names = frozenset(tool["name"] for tool in tools if "name" in tool)
        self._count = sum(bool(each.target.name) for each in callable_tools(tools))
        """Functions and custom tools of the client."""
        self._search: ToolProvider | None = None
        """The tool search that this server adds to long lists of tools."""
        has_search = any(tool["type"] == TOOL_SEARCH for tool in tools)
        if self._limits.defer_beyond and not has_search and TOOL_SEARCH in kinds:
            self._search = kinds[TOOL_SEARCH]({"type": TOOL_SEARCH, "all": True}, context)
            self._providers.append(self._search)

    @classmethod
    async def of(
        cls,
        tools: Sequence[Mapping[str, Any]],
        context: ToolContext,
        kinds: Mapping[str, ToolProviderFactory],
    ) -> "Toolbox":
        """The providers of these tools; `kinds` without MCP.

        Loading MCP takes half a second of CPU, and memory that most workers never need. So it is
        loaded for the first response with an MCP server, in a thread.
        """
        if not any(tool["type"] == "mcp" for tool in tools):
            return cls(tools, context, kinds)
        mcp = await asyncio.to_thread(importlib.import_module, "worker.tools.mcp_provider")
        return cls(tools, context, {**kinds, "mcp": mcp.McpToolProvider})

    def pending(self, history: Sequence[Item]) -> list[OpenCallFactory]:
        """The calls that must be run before the model's next turn, in the order of the tools
        (`ToolProvider.pending`)."""
        return [call for provider in self._providers for call in provider.pending(history)]

    def server_functions(self) -> dict[str, ServerFunction]:
        """The name under which the model knows a function -> the function."""
        return model_tool_names(
            (
                function
                for provider in self._providers
                if provider is not self._search or self.defers_all
                for function in provider.functions()
            ),
            self._client_names,
        )

    @property
    def defers_all(self) -> bool:
        """Whether the request has so many tools that all are loaded on demand."""
        if self._search is None:
            return False
        listed = (each for each in self._providers if each is not self._search)
        count = self._count + sum(len(each.functions()) for each in listed)
        return count > self._limits.defer_beyond

    def is_repeatable(self, item: Item) -> bool:
        """Whether a call with unknown outcome may be run again."""
        provider = self._provider_of(item)
        return provider is not None and provider.is_repeatable(item)

    async def recover(self, item: Item) -> ToolResult | None:
        """The result of a call with unknown outcome that its provider has kept; None: it has
        none."""
        provider = self._provider_of(item)
        return await provider.recover(item) if isinstance(provider, KeepsResults) else None

    def runs_in_order(self, item: Item) -> bool:
        """Whether the call waits for those before it that do so too."""
        provider = self._provider_of(item)
        return provider is not None and provider.in_order

    async def run(self, item: Item) -> ToolResult | ToolCallError:
        """The result of the call, or why it could not be carried out. Raises RunError if the
        response must end."""
        provider = self._provider_of(item)
        if provider is None:
            return ToolCallError("This tool is not available.")
        seconds = self._limits.time.total_seconds() if provider.time is None else provider.time
        try:
            async with asyncio.timeout(seconds):
                result = await provider.run(item)
            return _clean(_limit_size(self._limits, result))
        except ToolCallError as error:
            return error
        except RunError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # A library's own cancellation that it did not catch.
            return _internal_error(item, error)
        except TimeoutError:
            return ToolCallError(
                f"The tool did not answer within {seconds:g} s. "
                "What it was asked to do may or may not have happened."
            )
        except Exception as error:  # noqa: BLE001 - a tool must not end the run; it is logged
            return _internal_error(item, error)

    async def close(self) -> None:
        """Closes all providers, each within a few seconds."""
        await asyncio.gather(*(self._close_provider(provider) for provider in self._providers))

    async def _close_provider(self, provider: ToolProvider) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await provider.close()
        except TimeoutError:
            logger.warning("tool_close_timeout", provider=type(provider).__name__)
        except Exception:
            logger.exception("tool_close_failed", provider=type(provider).__name__)

    def _provider_of(self, item: Item) -> ToolProvider | None:
        return next((provider for provider in self._providers if provider.owns(item)), None)


def _internal_error(item: Item, error: BaseException) -> ToolCallError:
    """Logs an unexpected exception of a tool; returns the error for the model."""
    logger.error("tool_error", item=item["id"], type=item["type"], exc_info=error)
    return ToolCallError("The tool could not be run: the server had an error.")


def _limit_size(limits: ToolSettings, result: ToolResult) -> ToolResult:
    """The result with each text cut to the limit, and without images that are too large."""
    limited = {
        name: _truncate_texts(result.fields[name], limits.answer)
        for name in ("output", "error")
        if name in result.fields
    }
    output = result.tool_output
    if output is not None:
        output = _truncate_texts(output, limits.answer)
    if isinstance(output, list):
        output = _drop_large_images(limits.images, output)
    return replace(result, fields={**result.fields, **limited}, tool_output=output)


def _truncate_texts(value: Any, max_bytes: int) -> Any:
    """JSON with all its texts cut. An image's data is no text."""
    if isinstance(value, str):
        return _truncate(value, max_bytes)
    if isinstance(value, list):
        return [_truncate_texts(entry, max_bytes) for entry in value]
    if isinstance(value, dict) and value.get("type") != "input_image":
        return {name: _truncate_texts(field, max_bytes) for name, field in value.items()}
    return value


def _drop_large_images(max_bytes: int, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts, with a note in the place of each image that would exceed `max_bytes` together
    with those before it."""
    limited: list[dict[str, Any]] = []
    bytes_left = max_bytes
    for part in parts:
        size = len(part.get("image_url", ""))
        if size <= bytes_left:
            limited.append(part)
            bytes_left -= size
        else:
            limited.append({"type": "input_text", "text": _OMITTED})
    return limited


def _clean(result: ToolResult) -> ToolResult:
    """The result without characters that cannot be stored or encoded: a tool's output is not
    trusted."""
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
