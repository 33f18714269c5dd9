"""Finds out what an upstream can do, by sending it requests: `backburner upstream check`.

Each request goes through the same translation as a worker's, so what works here works in responses.
A model may ignore a feature that the upstream accepts: that is `unused`, not a fault of the
upstream.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import openai

from models.config.groups import LimitSettings
from models.config.upstream import UpstreamSettings
from models.config.upstream_access import client_options
from models.errors import LimitReached, UpstreamFailed
from models.ids import new_item_id
from models.wire.events import Item
from models.wire.request import CreateRequest, parse_create
from worker.translation.chat.request import chat_request
from worker.translation.chat.structured import format_instructions
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.responses.request import NativeOptions, native_request
from worker.translation.responses.translator import NativeTranslator
from worker.translation.tool_catalog import build_tool_catalog
from worker.translation.turn import Turn, TurnOptions
from worker.upstream.client import Upstream
from worker.upstream.dialect import dialect_of

_RED = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAS0lEQVR42u3PQQkAAAgAsetfWiP4FgYrsKZeS0BAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBA"
    "QEBAQEBAQEBAQEBAQEBAQEBAQEDgsqnc8OJg6Ln3AAAAAElFTkSuQmCC"
)
"""A square of one colour."""

_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in one city, now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class FeatureStatus(StrEnum):
    """The result of a check."""

    WORKS = "works"
    UNUSED = "unused"
    """The upstream accepted the request, and the model did not use the feature."""
    FAILS = "fails"
    UNTRIED = "untried"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    feature: str
    verdict: FeatureStatus
    said: str


@dataclass(frozen=True, slots=True)
class Conformance:
    """The table."""

    upstream: str
    base_url: str
    api: str
    model: str
    findings: list[Finding]

    @property
    def is_usable(self) -> bool:
        """Whether it answers."""
        return bool(self.findings) and self.findings[0].verdict is FeatureStatus.WORKS

    @property
    def is_complete(self) -> bool:
        """Whether everything works."""
        return all(finding.verdict is FeatureStatus.WORKS for finding in self.findings)


class NoModel(Exception):
    """No model was named, and the upstream gives no list of models."""


@dataclass(slots=True)
class TurnResult:
    """One turn of the model."""

    items: list[Item] = field(default_factory=list)
    chunk_count: int = 0
    """Chunks that brought output."""
    usage: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        parts = [
            part for item in self.items if item["type"] == "message" for part in item["content"]
        ]
        return "".join(part.get("text", "") for part in parts).strip()

    @property
    def calls(self) -> list[Item]:
        return [item for item in self.items if item["type"] == "function_call"]


async def check_conformance(
    settings: UpstreamSettings, limits: LimitSettings, model: str | None
) -> Conformance:
    """Runs all checks, one after another. Raises NoModel if `model` is None and none is listed."""

    async def send_at_once() -> None:
        """No lease has to be valid here."""

    upstream = Upstream(settings, limits, 4, send_at_once)
    try:
        model_name = model or await _first_listed_model(settings)
        checks = _FeatureChecks(upstream, settings, limits, model_name).checks
        findings: list[Finding] = []
        for feature, check in checks.items():
            if findings and findings[0].verdict is not FeatureStatus.WORKS:
                findings.append(Finding(feature, FeatureStatus.UNTRIED, ""))
            else:
                findings.append(await _run_check(feature, check))
        return Conformance(settings.name, settings.base_url, settings.api, model_name, findings)
    finally:
        await upstream.close()


async def _first_listed_model(settings: UpstreamSettings) -> str:
    async with openai.AsyncOpenAI(
        **client_options(settings), max_retries=0, timeout=10.0
    ) as client:
        try:
            listed = (await client.models.list()).data
            return next(each.id for each in listed)
        except (openai.OpenAIError, StopIteration, TypeError, AttributeError) as error:
            raise NoModel from error


async def _run_check(
    feature: str, check: Callable[[], Awaitable[tuple[FeatureStatus, str]]]
) -> Finding:
    try:
        return Finding(feature, *await check())
    except (UpstreamFailed, LimitReached) as failure:
        hint = _WRONG_ADDRESS_HINT if failure.reason in _WRONG_ADDRESS_REASONS else ""
        return Finding(feature, FeatureStatus.FAILS, failure.message + hint)


_WRONG_ADDRESS_REASONS = frozenset(
    {"upstream_garbage", "upstream_301", "upstream_302", "upstream_307", "upstream_308"}
)
_WRONG_ADDRESS_HINT = (
    " That address does not look like this API: is base_url what a client would use, with /v1, "
    "and is `api` right?"
)


class _FeatureChecks:
    """The checks, in order. If the first one fails, the others are not run."""

    def __init__(
        self, upstream: Upstream, settings: UpstreamSettings, limits: LimitSettings, model: str
    ) -> None:
        self._upstream = upstream
        self._settings = settings
        self._limits = limits
        self._model = model
        self._text_turn = TurnResult()
        self.checks: dict[str, Callable[[], Awaitable[tuple[FeatureStatus, str]]]] = {
            "text": self._text,
            "stream": self._stream,
            "usage": self._usage,
            "tools": self._tools,
            "parallel tools": self._parallel,
            "tool_choice": self._choice,
            "structured output": self._structured,
            "images": self._images,
            "reasoning": self._reasoning,
        }

    async def _run_turn(self, input_value: Any, **parameters: Any) -> TurnResult:
        """Runs one turn. Raises the error that would end a response."""
        request = parse_create(
            {"model": self._model, "input": input_value, **parameters}, new_id=new_item_id
        )
        body, translator = self._build_request(request)
        turn, result = self._upstream.call(body), TurnResult()
        async with aclosing(turn.chunks()) as reads:
            async for chunks in reads:
                result.chunk_count += sum(bool(translator.feed(chunk)) for chunk in chunks)
        translator.finish(done_seen=turn.done_seen)
        if translator.outcome is not None and translator.outcome.failure is not None:
            raise translator.outcome.failure
        result.items, result.usage = translator.output, translator.usage
        return result

    def _build_request(self, request: CreateRequest) -> tuple[dict[str, Any], Turn[Any]]:
        """The body for the upstream, and the turn that reads its answer."""
        settings, catalog = self._settings, build_tool_catalog(request.parameters)
        arguments: dict[str, Any] = {
            "model": self._model,
            "parameters": request.parameters,
            "history": request.input,
            "tool_catalog": catalog,
        }
        if self._upstream.is_native:
            return native_request(
                options=NativeOptions(settings.name), **arguments
            ), NativeTranslator(new_item_id, TurnOptions(tool_catalog=catalog))
        instructions = format_instructions(
            request.parameters.get("text", {}), settings.structured_output
        )
        translator = ChatTranslator(
            new_item_id,
            ChatOptions(
                tool_catalog=catalog,
                think_tags=settings.think_tags,
                think_opened=settings.think_opened,
                finish_reasons=settings.finish_reasons,
                fenced=instructions is not None,
            ),
        )
        return chat_request(dialect=dialect_of(settings), **arguments), translator

    async def _text(self) -> tuple[FeatureStatus, str]:
        self._text_turn = await self._run_turn(
            "Count from one to ten in words, and write nothing else."
        )
        return _status_of(
            bool(self._text_turn.text), _quote(self._text_turn.text), "the answer was empty"
        )

    async def _stream(self) -> tuple[FeatureStatus, str]:
        chunks = self._text_turn.chunk_count
        return _status_of(chunks > 1, f"in {chunks} chunks", "the whole answer came in one chunk")

    async def _usage(self) -> tuple[FeatureStatus, str]:
        usage = self._text_turn.usage or {}
        counted = f"{usage.get('input_tokens')} tokens in, {usage.get('output_tokens')} out"
        return _status_of(
            bool(self._text_turn.usage), counted, "none was sent; responses have null"
        )

    async def _tools(self) -> tuple[FeatureStatus, str]:
        result = await self._run_turn("What is the weather in Paris now?", tools=[_WEATHER])
        return _status_of(
            _is_call(result.calls),
            _format_calls(result.calls),
            "the model made no call, or one that does not fit the tool's schema",
        )

    async def _parallel(self) -> tuple[FeatureStatus, str]:
        question = "What is the weather in Paris, and what in Rome? Call the tool for both at once."
        result = await self._run_turn(question, tools=[_WEATHER], parallel_tool_calls=True)
        both = len(result.calls) > 1 and _is_call(result.calls)
        return _status_of(
            both, _format_calls(result.calls), f"calls in one turn: {len(result.calls)}"
        )

    async def _choice(self) -> tuple[FeatureStatus, str]:
        forced = {"named": {"type": "function", "name": "get_weather"}, "required": "required"}
        obeyed = [
            how
            for how, choice in forced.items()
            if (await self._run_turn("Say hello.", tools=[_WEATHER], tool_choice=choice)).calls
        ]
        if not (
            await self._run_turn(
                "What is the weather in Paris now?", tools=[_WEATHER], tool_choice="none"
            )
        ).calls:
            obeyed.append("none")
        ignored = [how for how in (*forced, "none") if how not in obeyed]
        return _status_of(not ignored, ", ".join(obeyed), f"not obeyed: {', '.join(ignored)}")

    async def _structured(self) -> tuple[FeatureStatus, str]:
        schema = {"type": "json_schema", "name": "person", "schema": _PERSON, "strict": True}
        result = await self._run_turn(
            "Ada is 36 years old. Give her name and age.", text={"format": schema}
        )
        return _status_of(
            _is_person(result.text),
            _quote(result.text),
            f"does not fit the schema: {_quote(result.text)}",
        )

    async def _images(self) -> tuple[FeatureStatus, str]:
        parts = [
            {"type": "input_text", "text": "Which colour is this? One word."},
            {"type": "input_image", "image_url": _RED},
        ]
        result = await self._run_turn([{"role": "user", "content": parts}])
        return _status_of(
            "red" in result.text.lower(),
            _quote(result.text),
            f"it did not name the colour: {_quote(result.text)}",
        )

    async def _reasoning(self) -> tuple[FeatureStatus, str]:
        result = await self._run_turn("How many r are in strawberry?", reasoning={"effort": "low"})
        has_reasoning = any(item["type"] == "reasoning" for item in result.items)
        return _status_of(
            has_reasoning,
            "reasoning is returned",
            "the effort was accepted, but no reasoning was returned",
        )


def _status_of(works: bool, detail: str, failure_detail: str) -> tuple[FeatureStatus, str]:
    return (FeatureStatus.WORKS, detail) if works else (FeatureStatus.UNUSED, failure_detail)


def _is_call(calls: list[Item]) -> bool:
    """Whether there are calls, and all fit the tool's schema."""
    return bool(calls) and all(
        call["name"] == "get_weather" and set(_parse_object(call["arguments"])) == {"city"}
        for call in calls
    )


def _is_person(text: str) -> bool:
    person = _parse_object(text)
    return set(person) == {"name", "age"} and isinstance(person["age"], int)


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _format_calls(calls: list[Item]) -> str:
    return ", ".join(f"{call['name']}({call['arguments']})" for call in calls)[:120]


def _quote(text: str) -> str:
    shown = " ".join(text.split())
    return f"“{shown[:60]}{'…' if len(shown) > 60 else ''}”"
