"""Histories of any mix, and what a chat upstream must be told of them (contract §7.1), worked out turn by turn.

A `Turn` is what the model was given and what it said then. The product sees flat items, whose turns it has to find; this sees the turns,
and so says independently of it what must come out.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.api import JSON

ChatMessage = tuple[str, Any]
"""(role, content); of assistants (role, (text, refusal, ids of calls)), of tools (role, (id of the call, content))."""


@dataclass(slots=True)
class HistoryTurn:
    """`given`: items for the model, in order; every call that was open before is answered among them."""

    input_items: list[JSON] = field(default_factory=list)
    reasoning: str | None = None
    text_before_calls: str | None = None
    """Text before the calls."""
    calls: list[str] = field(default_factory=list)
    text_after_calls: str | None = None
    """Text after them, of the same turn."""
    refusal: str | None = None
    broken_call: str | None = None
    """The id of a call that broke off with its response."""

    def output_items(self) -> list[JSON]:
        """The items of what the model said, as a client would send them."""
        items = (
            [
                {
                    "type": "reasoning",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": self.reasoning}],
                }
            ]
            if self.reasoning
            else []
        )
        items += [_message(self.text_before_calls)] if self.text_before_calls else []
        items += [
            {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}
            for name in self.calls
        ]
        items += [_message(self.text_after_calls)] if self.text_after_calls else []
        items += (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": self.refusal}]}]
            if self.refusal
            else []
        )
        if self.broken_call:
            items.append(
                {
                    "type": "function_call",
                    "call_id": self.broken_call,
                    "name": "look",
                    "arguments": "{",
                    "status": "incomplete",
                }
            )
        return items


def _message(text: str) -> JSON:
    return {"role": "assistant", "content": text}


def expected_messages(
    turns: Sequence[HistoryTurn], new_items: Iterable[JSON] = ()
) -> list[ChatMessage]:
    """What the upstream is told after these turns, when it is given `now`."""
    told: list[ChatMessage] = []
    texts: list[str] = []
    refusals: list[str] = []
    calls: list[str] = []
    for turn in [*turns, HistoryTurn(input_items=list(new_items))]:
        answers = {
            item["call_id"]: item["output"]
            for item in turn.input_items
            if item.get("type") == "function_call_output"
        }
        others = [item for item in turn.input_items if item.get("type") != "function_call_output"]
        if others or calls:
            told += _assistant(texts, refusals, calls, answers)
            texts, refusals, calls = [], [], []
        told += [(_ROLES[item["role"]], item["content"]) for item in others]
        texts += [text for text in (turn.text_before_calls, turn.text_after_calls) if text]
        refusals += [turn.refusal] if turn.refusal else []
        calls = list(turn.calls)
    return told + _assistant(texts, refusals, calls, {})


_ROLES = {"user": "user", "developer": "system", "system": "system"}


def _assistant(
    texts: list[str], refusals: list[str], calls: list[str], answers: dict[str, str]
) -> list[ChatMessage]:
    """One message for the whole turn, and behind it one for each call, in the order of the calls."""
    if not (texts or refusals or calls):
        return []
    spoken = ("\n\n".join(texts) or None, "\n\n".join(refusals) or None, tuple(calls))
    return [("assistant", spoken), *(("tool", (name, answers[name])) for name in calls)]


def normalize_messages(messages: Iterable[JSON]) -> list[ChatMessage]:
    """Chat messages in the same form."""
    return [_normalize(message) for message in messages]


def _normalize(message: JSON) -> ChatMessage:
    match message["role"]:
        case "assistant":
            calls = tuple(call["id"] for call in message.get("tool_calls", ()))
            return "assistant", (message["content"], message.get("refusal"), calls)
        case "tool":
            return "tool", (message["tool_call_id"], message["content"])
        case role:
            return role, message["content"]


class HistoryGenerator:
    """Makes turns from any source of chance with `random.Random`'s face; every word and id it gives is new."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = 0

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def _maybe(self, kind: str, probability: float) -> str | None:
        return self._new(kind) if self._rng.random() < probability else None

    def input_items(self, open_calls: Sequence[str], *, nonempty: bool) -> list[JSON]:
        """What the model is given: all answers that are due and some messages, in any order. `some`: at least something."""
        items: list[JSON] = [
            {"type": "function_call_output", "call_id": name, "output": self._new("seen")}
            for name in open_calls
        ]
        least = 1 if nonempty and not items else 0
        roles = self._rng.choices(["user", "user", "developer"], k=self._rng.randint(least, 2))
        items += [{"role": role, "content": self._new("words")} for role in roles]
        self._rng.shuffle(items)
        return items

    def turn(
        self, open_calls: Sequence[str], *, nonempty: bool = True, broken: bool = False
    ) -> HistoryTurn:
        """A turn after one that left these calls open. `breaks`: its last call breaks off, and so it leaves none open."""
        calls = (
            []
            if broken
            else [self._new("call") for _ in range(self._rng.choice([0, 0, 1, 1, 2, 3]))]
        )
        refused = self._maybe("no", 0.1) if not calls and not broken else None
        turn = HistoryTurn(
            input_items=self.input_items(open_calls, nonempty=nonempty),
            reasoning=self._maybe("hm", 0.3),
            text_before_calls=None if refused else self._maybe("before", 0.6),
            calls=calls,
            text_after_calls=self._maybe("after", 0.3) if calls else None,
            refusal=refused,
            broken_call=self._new("call") if broken else None,
        )
        if not (turn.text_before_calls or turn.calls or turn.refusal or turn.broken_call):
            turn.text_before_calls = self._new("before")
        return turn
