"""Finds out which settings a chat upstream needs: each question is a request that some upstreams
refuse, with the settings that may mend it.

Only whether the request is accepted counts. So these requests are short, and any model will do.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cli.configuration.trial import TRIAL_ERRORS, Trial, TurnResult
from models.config.dialect import PRESETS
from models.config.upstream import UpstreamSettings
from models.errors import UpstreamFailed

Update = Mapping[str, Any]
"""Settings by name."""

_REFUSED = re.compile(r"upstream_(400|405|409|413|415|422|500|501)")
"""Reasons of failures that another form of the request may avoid. Servers that fill a template
answer 500 where the template refuses."""
_TOKENS = 16
_TOKEN_CHARACTERS = 8
"""More than a token of text has, where the upstream does not count."""
_LIMIT_REACHED = "model output limit was reached"
"""OpenAI's words where a reasoning model has spent the limit: the request was accepted."""
_LONG = 1500
_TRIES = 4
"""Settings that one question may need together."""

_LOOK = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {
        "type": "object",
        "properties": {"at": {"type": "string"}},
        "required": ["at"],
        "additionalProperties": False,
    },
}
_STRICT = {**_LOOK, "strict": True}
_LOOSE = {"type": "function", "name": "rest", "parameters": {"type": "object"}}
_ODD = {
    **_LOOK,
    "parameters": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "at": {"const": "x"},
            "count": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 9},
            "more": {"type": "object", "propertyNames": {"pattern": "a"}},
        },
        "additionalProperties": False,
    },
}
_SCHEMA_KEYWORDS = PRESETS["gemini"]["omit_from_schemas"]
_FORMAT = {
    "type": "json_schema",
    "name": "answer",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
        "additionalProperties": False,
    },
}


def _user(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


_HELLO = _user("Say hello.")
_CALLED = [
    {"type": "function_call", "call_id": "call_check1", "name": "look", "arguments": '{"at":"x"}'},
    {"type": "function_call_output", "call_id": "call_check1", "output": "nothing"},
]
_REASONING_BACK: list[Update] = [
    {"reasoning_back": name, "reasoning_turns": turns}
    for name in ("reasoning_content", "reasoning")
    for turns in ("calls", "all")
]
_ALTERNATE: Update = {"alternate_roles": True}


def _obeys_limit(result: TurnResult) -> bool:
    if result.cut is not None:
        return True
    usage = result.usage or {"output_tokens": len(result.text) // _TOKEN_CHARACTERS}
    return bool(usage["output_tokens"] <= _TOKENS)


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and the settings that may make an upstream accept it, the mildest first."""

    name: str
    input: Any
    candidates: Sequence[Update] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    holds: Callable[[TurnResult], bool] | None = None
    """What an accepted request must lead to besides."""


_OTHER_FIELD: list[Update] = [
    {"max_tokens_field": name} for name in ("max_tokens", "max_completion_tokens")
]

QUESTIONS: tuple[Question, ...] = (
    Question(
        "limit of tokens",
        "Count from one to one hundred in words.",
        _OTHER_FIELD,
        holds=_obeys_limit,
    ),
    Question("sampling", [_HELLO], [{"omit": ["temperature"]}], {"temperature": 0.5, "top_p": 0.9}),
    Question(
        "late instructions",
        [_HELLO, _user("Hello.", "assistant"), _user("Be brief.", "developer"), _HELLO],
        [{"developer_role": "system"}, {"single_system_message": True}, *_REASONING_BACK],
        {"instructions": "Be polite."},
    ),
    Question("roles in a row", [_user("Hello."), _HELLO], [_ALTERNATE]),
    Question(
        "model's text last", [_HELLO, _user("Hello", "assistant")], [_ALTERNATE, *_REASONING_BACK]
    ),
    Question(
        "functions",
        [_HELLO],
        [{"omit": ["parallel_tool_calls"]}, {"strict_tools": "none"}],
        {"tools": [_LOOK], "parallel_tool_calls": True},
    ),
    Question(
        "strict functions",
        [_HELLO],
        [{"strict_tools": "none"}, {"strict_tools": "all"}],
        {"tools": [_STRICT, _LOOSE]},
    ),
    Question(
        "schema keywords", [_HELLO], [{"omit_from_schemas": _SCHEMA_KEYWORDS}], {"tools": [_ODD]}
    ),
    Question(
        "long description",
        [_HELLO],
        [{"description_limit": 1024}],
        {"tools": [{**_LOOK, "description": "Looks. " * (_LONG // 7)}]},
    ),
    Question(
        "named function",
        [_HELLO],
        [{"tool_choice": "required"}, {"tool_choice": "auto"}],
        {"tools": [_LOOK], "tool_choice": {"type": "function", "name": "look"}},
    ),
    Question(
        "required call",
        [_HELLO],
        [{"tool_choice": "auto"}],
        {"tools": [_LOOK], "tool_choice": "required"},
    ),
    Question(
        "no call", [_HELLO], [{"tool_choice": "auto"}], {"tools": [_LOOK], "tool_choice": "none"}
    ),
    Question(
        "output of a call",
        [_HELLO, *_CALLED],
        [{"call_content": "empty"}, {"call_content": "omitted"}, *_REASONING_BACK],
        {"tools": [_LOOK]},
    ),
    Question(
        "earlier call",
        [_HELLO, *_CALLED, _user("Nothing.", "assistant"), _HELLO],
        _REASONING_BACK,
        {"tools": [_LOOK]},
    ),
    Question("user after tool", [_HELLO, *_CALLED, _HELLO], [_ALTERNATE], {"tools": [_LOOK]}),
    Question(
        "empty output",
        [_HELLO, _CALLED[0], {**_CALLED[1], "output": ""}],
        [{"empty_content": "(empty)"}],
        {"tools": [_LOOK]},
    ),
    Question("calls, no tools", [_HELLO, *_CALLED], [{"tools_for_calls": True}]),
    Question(
        "JSON schema",
        [_user("Say hello in JSON.")],
        [{"structured_output": "json_object"}, {"structured_output": "prompt"}],
        {"text": {"format": _FORMAT}},
    ),
    Question("effort", [_HELLO], [{"effort_field": "none"}], {"reasoning": {"effort": "low"}}),
)


class SettingStatus(StrEnum):
    """What became of a question."""

    ACCEPTED = "accepted"
    NEEDS = "needs"
    """Accepted with other settings."""
    ADVISED = "advised"
    """It works without, and better with other settings."""
    REFUSED = "refused"
    """No setting that was tried helps."""
    UNTRIED = "untried"
    """It was not found out."""


@dataclass(frozen=True, slots=True)
class SettingFinding:
    """One line of the table."""

    question: str
    verdict: SettingStatus
    said: str
    needs: dict[str, Any] = field(default_factory=dict)
    """The settings without which the upstream refuses."""


class SettingsSearch:
    """Asks the questions of one upstream, each with the settings that earlier ones needed."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.found: dict[str, Any] = {}
        """All settings that are needed besides the present ones."""

    @property
    def settings(self) -> UpstreamSettings:
        """The present settings with those that were found."""
        return self._settings({})

    async def findings(self) -> AsyncIterator[SettingFinding]:
        """The answers, as they come."""
        for question in QUESTIONS:
            yield await self._ask(question)
        yield await self._find_count()

    async def _ask(self, question: Question) -> SettingFinding:
        failure = await self._failure(question, {})
        if failure is None:
            return SettingFinding(question.name, SettingStatus.ACCEPTED, "")
        if not _is_refusal(failure):
            return SettingFinding(question.name, SettingStatus.UNTRIED, str(failure))
        needs: dict[str, Any] = {}
        current = failure
        for _ in range(_TRIES):
            better = await self._better(question, needs, current)
            if better is None:
                break
            needs, after = better
            if after is None:
                self.found |= needs
                return SettingFinding(question.name, SettingStatus.NEEDS, str(failure), needs)
            current = after
        return SettingFinding(question.name, SettingStatus.REFUSED, str(failure))

    async def _better(
        self, question: Question, needs: dict[str, Any], failure: Exception
    ) -> tuple[dict[str, Any], Exception | None] | None:
        """The settings with one more candidate with which the upstream accepts the request, else
        those with which it refuses something else; None if there are none."""
        other: tuple[dict[str, Any], Exception | None] | None = None
        for candidate in [*self._named_fields(needs, failure), *question.candidates]:
            merged = self._merge(needs, candidate)
            if merged == needs:
                continue
            after = await self._failure(question, merged)
            if after is None:
                return merged, None
            if other is None and _is_refusal(after) and str(after) != str(failure):
                other = merged, after
        return other

    async def _failure(self, question: Question, needs: Update) -> Exception | None:
        """Why the request is not accepted; None if it is."""
        try:
            result = await self._trial.run(
                question.input,
                self._settings(needs),
                to_end=question.holds is not None,
                **{"max_output_tokens": _TOKENS, **question.parameters},
            )
        except TRIAL_ERRORS as error:
            return None if _LIMIT_REACHED in str(error) else error
        if question.holds is not None and not question.holds(result):
            return _NotObeyed("it was accepted and not obeyed")
        return None

    def _named_fields(self, needs: Update, failure: Exception) -> list[Update]:
        """The fields that a refusal names, left out."""
        settings = self._settings(needs)
        words = set(re.findall(r"\w+", str(failure)))
        return [
            {"omit": [name]} for name in _OMITTABLE if name in words and name not in settings.omit
        ]

    def _merge(self, needs: dict[str, Any], candidate: Update) -> dict[str, Any]:
        settings = self._settings(needs)
        return {
            **needs,
            **{
                name: list(dict.fromkeys([*getattr(settings, name), *value]))
                if isinstance(value, list)
                else value
                for name, value in candidate.items()
                if isinstance(value, list) or getattr(settings, name) != value
            },
        }

    def _settings(self, needs: Update) -> UpstreamSettings:
        update = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in {**self.found, **needs}.items()
        }
        return self._trial.settings.model_copy(update=update)

    async def _find_count(self) -> SettingFinding:
        """Whether the upstream counts tokens, where that is not set."""
        settings = self._settings({})
        if settings.count != "auto":
            return SettingFinding("count of tokens", SettingStatus.ACCEPTED, settings.count)
        for count in ("vllm", "llama.cpp"):
            tokens = await self._trial.count(settings.model_copy(update={"count": count}))
            if tokens:
                self.found["count"] = count
                said = f"it counts exactly: {tokens} tokens for a short request"
                return SettingFinding(
                    "count of tokens", SettingStatus.ADVISED, said, {"count": count}
                )
        return SettingFinding("count of tokens", SettingStatus.ACCEPTED, "it is estimated")


class _NotObeyed(Exception):
    """The upstream accepted the request and ignored what it is about."""


# Fields that no other setting is about.
_OMITTABLE = (
    *("stream_options", "parallel_tool_calls", "temperature", "top_p"),
    *("service_tier", "logprobs", "top_logprobs"),
)


def _is_refusal(failure: Exception) -> bool:
    return isinstance(failure, _NotObeyed) or (
        isinstance(failure, UpstreamFailed) and _REFUSED.fullmatch(failure.reason) is not None
    )


def toml_lines(settings: Update) -> list[str]:
    """Settings as lines of backburner.toml."""
    return [f"{name} = {_toml(value)}" for name, value in settings.items()]


def _toml(value: Any) -> str:
    # Texts, numbers, booleans and lists of texts: their JSON is TOML.
    return json.dumps(value, ensure_ascii=False)
