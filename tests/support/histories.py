"""Generated histories and the chat messages that an upstream must receive for them.

A `HistoryTurn` is the input of a turn and the model's output. The product sees flat items and has
to find the turns; this module knows the turns, so its expectation is independent of the product's
code.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.api import JSON

ChatMessage = tuple[str, Any]
"""(role, content). Assistants: (role, (text, ids of calls)); tools: (role, (call id, content)).
"""


@dataclass(slots=True)
class HistoryTurn:
    """One turn. `input_items`: the model's input in order, with an output for each open call."""

    input_items: list[JSON] = field(default_factory=list)
    reasoning: str | None = None
    text_before_calls: str | None = None
    """Text before the calls."""
    calls: list[str] = field(default_factory=list)
    text_after_calls: str | None = None
    """Text behind the calls, in the same turn."""
    refusal: str | None = None
    broken_call: str | None = None
    """The id of a call that was cut off with its response."""

    def output_items(self) -> list[JSON]:
        """The model's output items, as a client sends them back."""
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
    """The chat messages for these turns, followed by the input `new_items`."""
    messages: list[ChatMessage] = []
    texts: list[str] = []
    calls: list[str] = []
    for turn in [*turns, HistoryTurn(input_items=list(new_items))]:
        answers = {
            item["call_id"]: item["output"]
            for item in turn.input_items
            if item.get("type") == "function_call_output"
        }
        others = [item for item in turn.input_items if item.get("type") != "function_call_output"]
        if others or calls:
            messages += _assistant(texts, calls, answers)
            texts, calls = [], []
        messages += [(_ROLES[item["role"]], item["content"]) for item in others]
        spoken = (turn.text_before_calls, turn.text_after_calls, turn.refusal)
        texts += [text for text in spoken if text]
        calls = list(turn.calls)
    return messages + _assistant(texts, calls, {})


_ROLES = {"user": "user", "developer": "system", "system": "system"}


def _assistant(texts: list[str], calls: list[str], answers: dict[str, str]) -> list[ChatMessage]:
    """One message for the whole turn, then one for each call, in the order of the calls."""
    if not (texts or calls):
        return []
    content = ("\n\n".join(texts) or None, tuple(calls))
    return [("assistant", content), *(("tool", (name, answers[name])) for name in calls)]


def normalize_messages(messages: Iterable[JSON]) -> list[ChatMessage]:
    """Chat messages as `ChatMessage`s."""
    return [_normalize(message) for message in messages]


def _normalize(message: JSON) -> ChatMessage:
    match message["role"]:
        case "assistant":
            calls = tuple(call["id"] for call in message.get("tool_calls", ()))
            return "assistant", (message["content"], calls)
        case "tool":
            return "tool", (message["tool_call_id"], message["content"])
        case role:
            return role, message["content"]


class HistoryGenerator:
    """Makes turns from a `random.Random`. Every text and id is new."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = 0

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def _maybe(self, kind: str, probability: float) -> str | None:
        return self._new(kind) if self._rng.random() < probability else None

    def input_items(self, open_calls: Sequence[str], *, nonempty: bool) -> list[JSON]:
        """Input of a turn: an output for each open call and some messages, in any order.

        `nonempty`: at least one item.
        """
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
        """A turn behind one that left these calls open.

        `broken`: its call is cut off and leaves none open.
        """
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
