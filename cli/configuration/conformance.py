"""What an upstream can do, found out by asking it: `backburner upstream check`.

Each question is asked as a worker would ask it, through the same translation, so what works here works in responses. Models are no
programs: a feature that is offered and not taken up is told as such, not as a fault of the upstream.
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
from models.errors import LimitReached, UpstreamFailed
from models.ids import new_item_id
from models.wire.events import Item
from models.wire.request import CreateRequest, parse_create
from worker.translation.chat.request import chat_request
from worker.translation.chat.structured import format_instructions
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.responses.request import native_request
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
    """What came of a question."""

    WORKS = "works"
    UNUSED = "unused"
    """It was taken without complaint, and the model made nothing of it."""
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
        """It answers at all."""
        return bool(self.findings) and self.findings[0].verdict is FeatureStatus.WORKS

    @property
    def is_complete(self) -> bool:
        """Everything works."""
        return all(finding.verdict is FeatureStatus.WORKS for finding in self.findings)


class NoModel(Exception):
    """Nobody said which model to ask, and the upstream has no list."""


@dataclass(slots=True)
class TurnResult:
    """One turn of the model."""

    items: list[Item] = field(default_factory=list)
    chunk_count: int = 0
    """In which its words came."""
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
    """Asks all questions, one after another. Raises NoModel."""
    upstream = Upstream(settings, limits, 4)
    try:
        asked = model or await _first_listed_model(settings)
        interview = _FeatureChecks(upstream, settings, limits, asked)
        findings: list[Finding] = []
        for feature, question in interview.checks.items():
            if findings and findings[0].verdict is not FeatureStatus.WORKS:
                findings.append(Finding(feature, FeatureStatus.UNTRIED, ""))
            else:
                findings.append(await _run_check(feature, question))
        return Conformance(settings.name, settings.base_url, settings.api, asked, findings)
    finally:
        await upstream.close()


async def _first_listed_model(settings: UpstreamSettings) -> str:
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    key = settings.api_key.get_secret_value()
    async with openai.AsyncOpenAI(
        base_url=settings.base_url,
        api_key=key,
        max_retries=0,
        timeout=10.0,
        default_headers=headers,
        default_query=dict(settings.query),
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
_WRONG_ADDRESS_HINT = " That address does not seem to speak the API: is base_url what a client would use, with /v1, and is `api` right?"


class _FeatureChecks:
    """The questions, in order; the first decides whether there is any point in the others."""

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
        """One turn. Raises what would end a response."""
        request = parse_create(
            {"model": self._model, "input": input_value, **parameters}, new_id=new_item_id
        )
        body, translator = self._build_request(request)
        turn, spoken = self._upstream.call(body), TurnResult()
        async with aclosing(turn.chunks()) as reads:
            async for chunks in reads:
                spoken.chunk_count += sum(bool(translator.feed(chunk)) for chunk in chunks)
        translator.finish(done_seen=turn.done_seen)
        if translator.outcome is not None and translator.outcome.failure is not None:
            raise translator.outcome.failure
        spoken.items, spoken.usage = translator.output, translator.usage
        return spoken

    def _build_request(self, request: CreateRequest) -> tuple[dict[str, Any], Turn[Any]]:
        """The body for the upstream, and who understands its answer."""
        settings, offered = self._settings, build_tool_catalog(request.parameters)
        asked: dict[str, Any] = {
            "model": self._model,
            "parameters": request.parameters,
            "history": request.input,
            "tool_catalog": offered,
        }
        if self._upstream.is_native:
            return native_request(upstream=settings.name, **asked), NativeTranslator(
                new_item_id, TurnOptions(tool_catalog=offered)
            )
        told = format_instructions(request.parameters.get("text", {}), settings.structured_output)
        translator = ChatTranslator(
            new_item_id,
            ChatOptions(
                tool_catalog=offered,
                think_tags=settings.think_tags,
                fenced=told is not None,
            ),
        )
        return chat_request(dialect=dialect_of(settings), **asked), translator

    async def _text(self) -> tuple[FeatureStatus, str]:
        self._text_turn = await self._run_turn(
            "Count from one to ten in words, and say nothing else."
        )
        return _status_of(
            bool(self._text_turn.text), _quote(self._text_turn.text), "it answered without a word"
        )

    async def _stream(self) -> tuple[FeatureStatus, str]:
        pieces = self._text_turn.chunk_count
        return _status_of(pieces > 1, f"in {pieces} pieces", "the whole answer came in one piece")

    async def _usage(self) -> tuple[FeatureStatus, str]:
        usage = self._text_turn.usage or {}
        counted = f"{usage.get('input_tokens')} tokens in, {usage.get('output_tokens')} out"
        return _status_of(bool(self._text_turn.usage), counted, "none was sent; responses say null")

    async def _tools(self) -> tuple[FeatureStatus, str]:
        spoken = await self._run_turn("What is the weather in Paris now?", tools=[_WEATHER])
        return _status_of(
            _is_call(spoken.calls),
            _format_calls(spoken.calls),
            "the model called nothing, or not as the tool's schema says",
        )

    async def _parallel(self) -> tuple[FeatureStatus, str]:
        question = "What is the weather in Paris, and what in Rome? Call the tool for both at once."
        spoken = await self._run_turn(question, tools=[_WEATHER], parallel_tool_calls=True)
        both = len(spoken.calls) > 1 and _is_call(spoken.calls)
        return _status_of(
            both, _format_calls(spoken.calls), f"calls in one turn: {len(spoken.calls)}"
        )

    async def _choice(self) -> tuple[FeatureStatus, str]:
        forced = {"named": {"type": "function", "name": "get_weather"}, "required": "required"}
        kept = [
            how
            for how, choice in forced.items()
            if (await self._run_turn("Say hello.", tools=[_WEATHER], tool_choice=choice)).calls
        ]
        if not (
            await self._run_turn(
                "What is the weather in Paris now?", tools=[_WEATHER], tool_choice="none"
            )
        ).calls:
            kept.append("none")
        ignored = [how for how in (*forced, "none") if how not in kept]
        return _status_of(not ignored, ", ".join(kept), f"not obeyed: {', '.join(ignored)}")

    async def _structured(self) -> tuple[FeatureStatus, str]:
        schema = {"type": "json_schema", "name": "person", "schema": _PERSON, "strict": True}
        spoken = await self._run_turn(
            "Ada is 36 years old. Give her name and age.", text={"format": schema}
        )
        return _status_of(
            _is_person(spoken.text),
            _quote(spoken.text),
            f"not as the schema says: {_quote(spoken.text)}",
        )

    async def _images(self) -> tuple[FeatureStatus, str]:
        parts = [
            {"type": "input_text", "text": "Which colour is this? One word."},
            {"type": "input_image", "image_url": _RED},
        ]
        spoken = await self._run_turn([{"role": "user", "content": parts}])
        return _status_of(
            "red" in spoken.text.lower(),
            _quote(spoken.text),
            f"it did not see that it is red: {_quote(spoken.text)}",
        )

    async def _reasoning(self) -> tuple[FeatureStatus, str]:
        spoken = await self._run_turn("How many r are in strawberry?", reasoning={"effort": "low"})
        thought = any(item["type"] == "reasoning" for item in spoken.items)
        return _status_of(
            thought,
            "the model's thoughts are shown",
            "the effort was taken, and no thoughts were shown",
        )


def _status_of(works: bool, detail: str, failure_detail: str) -> tuple[FeatureStatus, str]:
    return (FeatureStatus.WORKS, detail) if works else (FeatureStatus.UNUSED, failure_detail)


def _is_call(calls: list[Item]) -> bool:
    """All are whole, and of the tool's schema."""
    return bool(calls) and all(
        call["name"] == "get_weather" and set(_parse_object(call["arguments"])) == {"city"}
        for call in calls
    )


def _is_person(text: str) -> bool:
    found = _parse_object(text)
    return set(found) == {"name", "age"} and isinstance(found["age"], int)


def _parse_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _format_calls(calls: list[Item]) -> str:
    return ", ".join(f"{call['name']}({call['arguments']})" for call in calls)[:120]


def _quote(text: str) -> str:
    shown = " ".join(text.split())
    return f"“{shown[:60]}{'…' if len(shown) > 60 else ''}”"
