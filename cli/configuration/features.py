"""What an upstream can do: each feature is tried with a short request."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cli.configuration.trial import TRIAL_ERRORS, Trial, TurnResult
from models.errors import UpstreamFailed
from models.wire.events import Item

Verdict = tuple["FeatureStatus", str]

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
_FEW_TOKENS = 16


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
    is_refusal: bool = False
    """Whether the upstream refused the request."""


async def run_check(feature: str, check: Callable[[], Awaitable[Verdict]]) -> Finding:
    """Tries one feature."""
    try:
        return Finding(feature, *await check())
    except TRIAL_ERRORS as failure:
        hint = _WRONG_ADDRESS_HINT if failure.reason in _WRONG_ADDRESS_REASONS else ""
        is_refusal = isinstance(failure, UpstreamFailed) and failure.reason in _REFUSALS
        return Finding(feature, FeatureStatus.FAILS, failure.message + hint, is_refusal)


_REFUSALS = frozenset(("upstream_400", "upstream_422"))
_WRONG_ADDRESS_REASONS = frozenset(
    {"upstream_garbage", "upstream_301", "upstream_302", "upstream_307", "upstream_308"}
)
_WRONG_ADDRESS_HINT = (
    " That address does not look like this API: is base_url what a client would use, with /v1, "
    "and is `api` right?"
)


class FeatureChecks:
    """The checks, in order. If the first one fails, the others are not run."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._text_turn = TurnResult()
        self.checks: dict[str, Callable[[], Awaitable[Verdict]]] = {
            "text": self._text,
            "stream": self._stream,
            "usage": self._usage,
            "tools": self._tools,
            "parallel tools": self._parallel,
            "tool_choice": self._choice,
            "structured output": self._structured,
            "images": self._images,
            "reasoning": self._reasoning,
            "length limit": self._length,
        }

    async def _text(self) -> Verdict:
        self._text_turn = await self._trial.run(
            "Count from one to ten in words, and write nothing else."
        )
        turn = self._text_turn
        has_answer = bool(turn.text or turn.has_reasoning or (turn.cut and turn.chunk_count))
        cut = f", cut off after {turn.cut}" if turn.cut else ""
        return _status_of(has_answer, _quote(turn.text) + cut, "the answer was empty")

    async def _stream(self) -> Verdict:
        chunks = self._text_turn.chunk_count
        return _status_of(chunks > 1, f"in {chunks} chunks", "the whole answer came in one chunk")

    async def _usage(self) -> Verdict:
        usage = self._text_turn.usage or {}
        counted = f"{usage.get('input_tokens')} tokens in, {usage.get('output_tokens')} out"
        return _status_of(
            bool(self._text_turn.usage),
            counted,
            "none was sent; responses have null",
            self._text_turn if self._text_turn.cut == self._trial.time_cut else None,
        )

    async def _tools(self) -> Verdict:
        result = await self._trial.run("What is the weather in Paris now?", tools=[_WEATHER])
        return _status_of(
            _is_call(result.calls),
            _format_calls(result.calls),
            "the model made no call, or one that does not fit the tool's schema",
            result,
        )

    async def _parallel(self) -> Verdict:
        question = "What is the weather in Paris, and what in Rome? Call the tool for both at once."
        result = await self._trial.run(question, tools=[_WEATHER], parallel_tool_calls=True)
        both = len(result.calls) > 1 and _is_call(result.calls)
        return _status_of(
            both, _format_calls(result.calls), f"calls in one turn: {len(result.calls)}", result
        )

    async def _choice(self) -> Verdict:
        forced = {"named": {"type": "function", "name": "get_weather"}, "required": "required"}
        obeyed, results = [], []
        for how, choice in forced.items():
            results.append(
                await self._trial.run("Say hello.", tools=[_WEATHER], tool_choice=choice)
            )
            obeyed += [how] if results[-1].calls else []
        free = await self._trial.run(
            "What is the weather in Paris now?", tools=[_WEATHER], tool_choice="none"
        )
        obeyed += [] if free.calls else ["none"]
        ignored = [how for how in (*forced, "none") if how not in obeyed]
        return _status_of(
            not ignored,
            ", ".join(obeyed),
            f"not obeyed: {', '.join(ignored)}",
            next((result for result in results if result.cut and not result.calls), None),
        )

    async def _structured(self) -> Verdict:
        schema = {"type": "json_schema", "name": "person", "schema": _PERSON, "strict": True}
        result = await self._trial.run(
            "Ada is 36 years old. Give her name and age.", text={"format": schema}
        )
        return _status_of(
            _is_person(result.text),
            _quote(result.text),
            f"does not fit the schema: {_quote(result.text)}",
            result,
        )

    async def _images(self) -> Verdict:
        parts = [
            {"type": "input_text", "text": "Which colour is this? One word."},
            {"type": "input_image", "image_url": _RED},
        ]
        result = await self._trial.run([{"role": "user", "content": parts}])
        return _status_of(
            "red" in result.text.lower(),
            _quote(result.text),
            f"it did not name the colour: {_quote(result.text)}",
            result,
        )

    async def _reasoning(self) -> Verdict:
        result = await self._trial.run("How many r are in strawberry?", reasoning={"effort": "low"})
        return _status_of(
            result.has_reasoning,
            "reasoning is returned",
            "the effort was accepted, but no reasoning was returned",
            result,
        )

    async def _length(self) -> Verdict:
        result = await self._trial.run(
            "Count from one to one hundred in words.", max_output_tokens=_FEW_TOKENS
        )
        return _status_of(
            result.cut is not None and result.cut != self._trial.time_cut,
            f"an answer ends after {_FEW_TOKENS} tokens",
            f"a limit of {_FEW_TOKENS} tokens was not reported as the end of the answer",
            result,
        )


def _status_of(
    works: bool, detail: str, failure_detail: str, turn: TurnResult | None = None
) -> Verdict:
    """The verdict. `turn`: of one that a limit ended nothing is known, unless it works."""
    if works:
        return FeatureStatus.WORKS, detail
    if turn is not None and turn.cut is not None:
        return FeatureStatus.UNTRIED, f"not found out: the answer reached {turn.cut}"
    return FeatureStatus.UNUSED, failure_detail


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
