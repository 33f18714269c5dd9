"""Tool search in a worker: the provider of the tool `tool_search`.

The items are the state. A `tool_search_call` runs the search; what the model got for it names the
tools, of which `pending` makes the `tool_search_output` behind it. What such outputs name is loaded
from then on (worker/translation/tool_catalog.py), also for a worker that takes the response over.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from features.retrieval.embedder import (
    Embedder,
    Embeddings,
    EmbeddingsRefused,
    EmbeddingsUnavailable,
    TextOwner,
)
from features.tool_search.index import MAX_TOOLS, Document, ToolIndex, list_hash, unit
from features.usage_entries import FeatureCall, count_call
from models.ids import new_uuid
from models.projects.routes import ProjectRoutes
from models.wire.events import Item
from models.wire.mcp import is_allowed
from models.wire.token_counts import NO_TOKENS, UsageKind
from models.wire.tools import TOOL_SEARCH, CallableTool, callable_tools
from worker.run.resources import Resources, WorkerFeature
from worker.tools.provider import ToolCallError, ToolContext, ToolProvider, ToolResult
from worker.translation.functions import ServerFunction
from worker.translation.items.server_calls import OpenCallFactory, OpenFoundTools, OpenToolSearch

logger = structlog.get_logger()

Json = dict[str, Any]

_FOUND = 8
"""Tools that one search loads."""
_ABOUT = 200
"""Characters of a description that the model gets before the tool is loaded."""
_SOURCES = 4_000
"""Characters of the list of what can be searched."""
_INDEXES = 8
"""Indexes that a worker keeps."""
_EMBEDDED = 2_048
"""Tools of a list that has embeddings; a longer one is searched by words alone."""
_EMBEDDING_TIME = 20.0
"""Seconds that the embeddings of a list or a query may take, at most half the time of a tool call.
Without them words decide."""
_PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "description": "What the tool should do, with the name of its service.",
        }
    },
    "required": ["query"],
    "additionalProperties": False,
}


class Indexes:
    """The indexes of one process, by the hash of their lists. One is built at a time, in a
    thread."""

    def __init__(self, resources: Resources, embedder: Embedder) -> None:
        self._resources = resources
        self._settings = resources.settings.retrieval
        self._embedder = embedder
        self._time = min(_EMBEDDING_TIME, resources.settings.tools.time.total_seconds() / 2)
        self._kept: OrderedDict[tuple[Any, bytes], ToolIndex] = OrderedDict()
        self._lock = asyncio.Lock()

    async def find(
        self, documents: Sequence[Document], query: str, context: ToolContext
    ) -> list[Document]:
        """The tools that fit the query best."""
        async with self._lock:
            index = await self._index(documents, context)
        vector: Sequence[float] = ()
        has_model = self._settings.embedding_model is not None
        if has_model and not index.vectors and len(documents) <= _EMBEDDED:
            index.vectors = await self._embed([each.text for each in documents], context)
        if index.vectors:
            vector = next(iter(await self._embed([query[:1000]], context)), ())
        places = await asyncio.to_thread(index.find, query, _FOUND, vector)
        return [index.documents[at] for at in places]

    async def _index(self, documents: Sequence[Document], context: ToolContext) -> ToolIndex:
        key = (context.project, await asyncio.to_thread(list_hash, documents))
        index = self._kept.pop(key, None)
        if index is None:
            index = await asyncio.to_thread(ToolIndex, documents)
        self._kept[key] = index
        while len(self._kept) > _INDEXES:
            self._kept.popitem(last=False)
        return index

    async def _embed(self, texts: Sequence[str], context: ToolContext) -> list[Sequence[float]]:
        """Their embeddings; none if they cannot be made now."""
        model, batch = self._settings.embedding_model, self._settings.embedding_batch
        assert model is not None
        assert context.project is not None
        policy = await self._resources.policies.policy(context.project)
        owner = TextOwner(context.project, policy.routes, context.api_key)
        vectors: list[Sequence[float]] = []
        try:
            async with asyncio.timeout(self._time):
                for first in range(0, len(texts), batch):
                    made = await self._embedder.embed(
                        owner, texts[first : first + batch], model, self._settings.dimensions
                    )
                    vectors += [unit(json.loads(each)) for each in made.vectors]
                    await self._count(context, model, made)
        except (TimeoutError, EmbeddingsUnavailable, EmbeddingsRefused) as error:
            logger.warning("tool_search_by_words", error=str(error))
            return []
        return vectors

    async def _count(self, context: ToolContext, model: str, made: Embeddings) -> None:
        assert context.project is not None
        usage = replace(NO_TOKENS, input_tokens=made.tokens)
        kind, key = UsageKind.EMBEDDINGS, context.api_key
        await count_call(
            self._resources,
            FeatureCall(new_uuid(), context.project, key, kind, model, made.upstream, usage),
        )


class ToolSearch:
    """The search of one request."""

    time: float | None = None
    in_order = False

    def __init__(self, indexes: Indexes, tool: Mapping[str, Any], context: ToolContext) -> None:
        """`tool`: with `all`, everything that has a name is searched."""
        self._indexes = indexes
        self._context = context
        self._is_ours = tool.get("execution") != "client"
        self._about = tool.get("description")
        self._all = bool(tool.get("all"))
        self._history: Sequence[Item] = ()

    def pending(self, history: Sequence[Item]) -> list[OpenCallFactory]:
        """The outputs of the searches that have none yet."""
        if not self._is_ours:
            return []
        self._history = history
        ours = [item for item in history if "turn" in item and item["status"] == "completed"]
        searched = [
            item["answer"]
            for item in ours
            if item["type"] == OpenToolSearch.kind
            if "answer" in item
        ]
        shown = sum(item["type"] == OpenFoundTools.kind for item in ours)
        return [self._output(answer) for answer in searched[shown:]]

    def _output(self, answer: str) -> OpenCallFactory:
        try:
            tools = self._found(json.loads(answer))
        except ValueError:
            tools = []  # cut off: the limit of answers is lower than a few hundred bytes
        return lambda index, new_id: OpenFoundTools(
            index, new_id(OpenFoundTools.prefix), tools=tools
        )

    def _found(self, refs: Sequence[Mapping[str, str]]) -> list[Json]:
        """The found tools as the client sent them; those of MCP servers by their names."""
        wanted = {(ref.get("in", ""), ref["name"]) for ref in refs}
        tools: list[Json] = []
        for tool in self._tools():
            names = {name for place, name in wanted if place == tool.get("server_label")}
            if tool["type"] == "mcp" and names:
                found = {"server_label": tool["server_label"], "allowed_tools": sorted(names)}
                tools.append({"type": "mcp", **found})
            elif tool["type"] == "namespace":
                inner = [each for each in tool["tools"] if (tool["name"], each["name"]) in wanted]
                tools += [{**tool, "tools": inner}] if inner else []
            elif tool["type"] in ("function", "custom") and ("", tool["name"]) in wanted:
                tools.append(dict(tool))
        return tools

    def _tools(self) -> Iterator[Mapping[str, Any]]:
        """Those of the request, and those that a developer has added."""
        yield from self._context.request_tools
        for item in self._history:
            if item["type"] == "additional_tools":
                yield from (tool for tool in item["tools"] if tool["type"] != "mcp")

    def _is_deferred(self, tool: Mapping[str, Any]) -> bool:
        return self._all or bool(tool.get("defer_loading"))

    def functions(self) -> list[ServerFunction]:
        """The search, if there is something to find."""
        sources = list(self._sources()) if self._is_ours else []
        if not sources:
            return []
        listed = "\n".join(sources)
        text = listed if len(listed) <= _SOURCES else f"{listed[:_SOURCES]}\n…"
        about = self._about or (
            "Searches for more tools and loads them: they can be called from then on. "
            "Search before you say that something cannot be done."
        )
        description = f"{about}\n\nWhat can be found:\n{text}"
        return [ServerFunction({"type": TOOL_SEARCH}, TOOL_SEARCH, _open, description, _PARAMETERS)]

    def _sources(self) -> Iterator[str]:
        for tool in self._tools():
            if tool["type"] == "mcp" and self._is_deferred(tool):
                yield _line(tool["server_label"], tool.get("server_description"))
            elif tool["type"] == "namespace" and any(map(self._is_deferred, tool["tools"])):
                yield _line(tool["name"], tool["description"])
            elif tool["type"] in ("function", "custom") and self._is_deferred(tool):
                yield _line(tool["name"], tool.get("description"))

    def owns(self, item: Item) -> bool:
        return item["type"] in (OpenToolSearch.kind, OpenFoundTools.kind) and self._is_ours

    def is_repeatable(self, item: Item) -> bool:  # noqa: ARG002 - a search changes nothing
        return True

    async def run(self, item: Item) -> ToolResult:
        """Searches. The model gets the names and what they are for. Raises ToolCallError without a
        query."""
        if item["type"] == OpenFoundTools.kind:
            return ToolResult()
        query = item["arguments"]["query"]
        if not query:
            raise ToolCallError("A tool search needs a 'query': what the tool should do.")
        documents = await asyncio.to_thread(lambda: list(self._documents())[:MAX_TOOLS])
        found = await self._indexes.find(documents, query, self._context)
        refs = [
            {
                **({"in": each.place} if each.place else {}),
                "name": each.name,
                "about": each.description[:_ABOUT],
            }
            for each in found
        ]
        return ToolResult(tool_output=json.dumps(refs, ensure_ascii=False))

    def _documents(self) -> Iterator[Document]:
        tools = list(self._tools())
        for each in callable_tools(tools):
            if each.target.name and self._is_deferred(each.tool):
                yield _client_document(each)
        for tool in tools:
            if tool["type"] == "mcp" and self._is_deferred(tool):
                for listed in self._listed(tool["server_label"]):
                    if is_allowed(tool, listed["name"], listed.get("annotations") or {}):
                        schema = listed.get("input_schema")
                        yield Document.of(tool["server_label"], listed, schema)

    def _listed(self, label: str) -> Sequence[Json]:
        for item in reversed(self._history):
            if item["type"] == "mcp_list_tools" and item["server_label"] == label and item["tools"]:
                tools: Sequence[Json] = item["tools"]
                return tools
        return ()

    async def close(self) -> None:
        """Does nothing: the indexes belong to the process."""


def _client_document(each: CallableTool) -> Document:
    return Document.of(each.target.namespace or "", each.tool, each.tool.get("parameters"))


def _line(name: str, about: str | None) -> str:
    return f"- {name}: {about[:_ABOUT]}" if about else f"- {name}"


def _open(output_index: int, new_id: Any) -> OpenToolSearch:
    return OpenToolSearch(output_index, new_id(OpenToolSearch.prefix))


class ToolSearchFeature(WorkerFeature):
    """The tool `tool_search`."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        settings = resources.settings
        self._embedder = Embedder(settings.retrieval, ProjectRoutes(settings), resources.prices)
        indexes = Indexes(resources, self._embedder)
        resources.tools[TOOL_SEARCH] = partial(_provider, indexes)

    async def close(self) -> None:
        """Closes the connections to upstreams."""
        await self._embedder.close()


def _provider(indexes: Indexes, tool: Mapping[str, Any], context: ToolContext) -> ToolProvider:
    return ToolSearch(indexes, tool, context)


FEATURE = ToolSearchFeature
