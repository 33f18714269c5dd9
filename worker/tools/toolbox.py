"""All tools of one response that this server runs, behind one face: who runs a call, within which limits, and what a failure becomes."""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from models.config.settings import ToolSettings
from models.errors import RunError
from models.wire.events import Item
from models.wire.json_input import cleaned
from models.wire.tools import WEB_SEARCH
from worker.tools.provider import Means, NewSource, Refusal, Result, Source
from worker.tools.web_search import WebSearch
from worker.translation.items.server_calls import HostedFunction, Opening, spoken_names

logger = structlog.get_logger()

_SOURCES: dict[str, NewSource] = dict.fromkeys(WEB_SEARCH, WebSearch)
"""type of a tool -> what makes its source; those of MCP servers come on demand"""

_FAREWELL = 5.0
"""Seconds a source has to give back what it holds."""


class Toolbox:
    """The sources of one response. Nothing is connected before it is needed."""

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], means: Means, kinds: Mapping[str, NewSource]
    ) -> None:
        """`tools` as the request names them; those that the client runs are none of ours, but their names are taken. `kinds`: type of a
        tool -> what makes its source."""
        self._limits: ToolSettings = means.settings.tools
        self._sources: list[Source] = [
            kinds[tool["type"]](tool, means) for tool in tools if tool["type"] in kinds
        ]
        self._taken = frozenset(tool["name"] for tool in tools if "name" in tool)

    @classmethod
    async def of(cls, tools: Sequence[Mapping[str, Any]], means: Means) -> "Toolbox":
        """The sources of these tools. What MCP takes, half a second of CPU and memory that most workers never need, is loaded beside the
        event loop for the first response that names a server."""
        if not any(tool["type"] == "mcp" for tool in tools):
            return cls(tools, means, _SOURCES)
        mcp = await asyncio.to_thread(importlib.import_module, "worker.tools.mcp")
        return cls(tools, means, {**_SOURCES, "mcp": mcp.McpSource})

    def due(self, history: Sequence[Item]) -> list[Opening]:
        """What must be run before the model speaks, in the order of the tools; see `Source.due`."""
        return [opening for source in self._sources for opening in source.due(history)]

    def offered(self) -> dict[str, HostedFunction]:
        """The name by which the model calls a function -> the function."""
        return spoken_names(
            (function for source in self._sources for function in source.functions()), self._taken
        )

    def is_repeatable(self, item: Item) -> bool:
        """Whether the call may be run a second time."""
        source = self._owner(item)
        return source is not None and source.is_repeatable(item)

    async def run(self, item: Item) -> Result | Refusal:
        """What the call gave, or why it could not be carried out. Raises RunError when the response cannot go on."""
        source = self._owner(item)
        if source is None:
            return Refusal("This tool is not available.")
        seconds = self._limits.time.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                result = await source.run(item)
            return _clean(_within(self._limits, result))
        except Refusal as refusal:
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
            return Refusal("The tool could not be run: the server had an error.")
        except TimeoutError:
            return Refusal(
                f"The tool did not answer within {seconds:g} s. What it was asked to do may or may not have happened."
            )
        except Exception:
            logger.exception("tool_broke", item=item["id"], type=item["type"])
            return Refusal("The tool could not be run: the server had an error.")

    async def close(self) -> None:
        """Closes every source, each within a few seconds."""
        await asyncio.gather(*(self._farewell(source) for source in self._sources))

    async def _farewell(self, source: Source) -> None:
        try:
            async with asyncio.timeout(_FAREWELL):
                await source.close()
        except TimeoutError:
            logger.warning("tool_lingers", source=type(source).__name__)
        except Exception:
            logger.exception("tool_did_not_close", source=type(source).__name__)

    def _owner(self, item: Item) -> Source | None:
        return next((source for source in self._sources if source.owns(item)), None)


def _within(limits: ToolSettings, result: Result) -> Result:
    """The result with each text cut to what the model is told at most, and without images that are too large."""
    told = {
        name: _shortened(result.fields[name], limits.answer)
        for name in ("output", "error")
        if name in result.fields
    }
    answer = result.answer if result.answer is None else _shortened(result.answer, limits.answer)
    if isinstance(answer, list):
        answer = _with_images_of(limits.images, answer)
    return replace(result, fields={**result.fields, **told}, answer=answer)


def _shortened(value: Any, most: int) -> Any:
    """JSON with all its texts cut; what an image holds is no text."""
    if isinstance(value, str):
        return _cut(value, most)
    if isinstance(value, list):
        return [_shortened(entry, most) for entry in value]
    if isinstance(value, dict) and value.get("type") != "input_image":
        return {name: _shortened(found, most) for name, found in value.items()}
    return value


def _with_images_of(most: int, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts, with a word in the place of each image for which there is no room any more."""
    kept: list[dict[str, Any]] = []
    for part in parts:
        size = len(part.get("image_url", ""))
        kept.append(part if size <= most else {"type": "input_text", "text": _CUT})
        most -= size if size <= most else 0
    return kept


def _clean(result: Result) -> Result:
    """The result without what can be neither stored nor encoded: tools are as hostile as anybody."""
    return replace(result, fields=cleaned(result.fields), answer=cleaned(result.answer))


def _cut(text: str, most: int) -> str:
    encoded = text.encode()
    return text if len(encoded) <= most else f"{encoded[:most].decode(errors='ignore')}\n{_CUT}"


_CUT = "[The rest is left out: the tool's answer was too long.]"
