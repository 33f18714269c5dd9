"""Histories of any mix, and what a chat upstream must be told of them (contract §7.1), worked out turn by turn.

A `Turn` is what the model was given and what it said then. The product sees flat items, whose turns it has to find; this sees the turns,
and so says independently of it what must come out.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

JSON = dict[str, Any]
Told = tuple[str, Any]
"""(role, content); of assistants (role, (text, refusal, ids of calls)), of tools (role, (id of the call, content))."""


@dataclass(slots=True)
class Turn:
    """`given`: items for the model, in order; every call that was open before is answered among them."""

    given: list[JSON] = field(default_factory=list)
    thought: str | None = None
    before: str | None = None
    """Text before the calls."""
    calls: list[str] = field(default_factory=list)
    after: str | None = None
    """Text after them, of the same turn."""
    refused: str | None = None
    broken: str | None = None
    """The id of a call that broke off with its response."""

    def said(self) -> list[JSON]:
        """The items of what the model said, as a client would send them."""
        items = (
            [
                {
                    "type": "reasoning",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": self.thought}],
                }
            ]
            if self.thought
            else []
        )
        items += [_message(self.before)] if self.before else []
        items += [
            {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}
            for name in self.calls
        ]
        items += [_message(self.after)] if self.after else []
        items += (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": self.refused}]}]
            if self.refused
            else []
        )
        if self.broken:
            items.append(
                {
                    "type": "function_call",
                    "call_id": self.broken,
                    "name": "look",
                    "arguments": "{",
                    "status": "incomplete",
                }
            )
        return items


def _message(text: str) -> JSON:
    return {"role": "assistant", "content": text}


def told_of(turns: Sequence[Turn], now: Iterable[JSON] = ()) -> list[Told]:
    """What the upstream is told after these turns, when it is given `now`."""
    told: list[Told] = []
    texts: list[str] = []
    refusals: list[str] = []
    calls: list[str] = []
    for turn in [*turns, Turn(given=list(now))]:
        answers = {
            item["call_id"]: item["output"]
            for item in turn.given
            if item.get("type") == "function_call_output"
        }
        others = [item for item in turn.given if item.get("type") != "function_call_output"]
        if others or calls:
            told += _assistant(texts, refusals, calls, answers)
            texts, refusals, calls = [], [], []
        told += [(_ROLES[item["role"]], item["content"]) for item in others]
        texts += [text for text in (turn.before, turn.after) if text]
        refusals += [turn.refused] if turn.refused else []
        calls = list(turn.calls)
    return told + _assistant(texts, refusals, calls, {})


_ROLES = {"user": "user", "developer": "system", "system": "system"}


def _assistant(
    texts: list[str], refusals: list[str], calls: list[str], answers: dict[str, str]
) -> list[Told]:
    """One message for the whole turn, and behind it one for each call, in the order of the calls."""
    if not (texts or refusals or calls):
        return []
    spoken = ("\n\n".join(texts) or None, "\n\n".join(refusals) or None, tuple(calls))
    return [("assistant", spoken), *(("tool", (name, answers[name])) for name in calls)]


def heard(messages: Iterable[JSON]) -> list[Told]:
    """Chat messages in the same form."""
    return [_heard(message) for message in messages]


def _heard(message: JSON) -> Told:
    match message["role"]:
        case "assistant":
            calls = tuple(call["id"] for call in message.get("tool_calls", ()))
            return "assistant", (message["content"], message.get("refusal"), calls)
        case "tool":
            return "tool", (message["tool_call_id"], message["content"])
        case role:
            return role, message["content"]


class Author:
    """Makes turns from any source of chance with `random.Random`'s face; every word and id it gives is new."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._count = 0

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def _perhaps(self, kind: str, likely: float) -> str | None:
        return self._new(kind) if self._chance.random() < likely else None

    def given(self, open_calls: Sequence[str], *, some: bool) -> list[JSON]:
        """What the model is given: all answers that are due and some messages, in any order. `some`: at least something."""
        items: list[JSON] = [
            {"type": "function_call_output", "call_id": name, "output": self._new("seen")}
            for name in open_calls
        ]
        least = 1 if some and not items else 0
        roles = self._chance.choices(
            ["user", "user", "developer"], k=self._chance.randint(least, 2)
        )
        items += [{"role": role, "content": self._new("words")} for role in roles]
        self._chance.shuffle(items)
        return items

    def turn(self, open_calls: Sequence[str], *, some: bool = True, breaks: bool = False) -> Turn:
        """A turn after one that left these calls open. `breaks`: its last call breaks off, and so it leaves none open."""
        calls = (
            []
            if breaks
            else [self._new("call") for _ in range(self._chance.choice([0, 0, 1, 1, 2, 3]))]
        )
        refused = self._perhaps("no", 0.1) if not calls and not breaks else None
        turn = Turn(
            given=self.given(open_calls, some=some),
            thought=self._perhaps("hm", 0.3),
            before=None if refused else self._perhaps("before", 0.6),
            calls=calls,
            after=self._perhaps("after", 0.3) if calls else None,
            refused=refused,
            broken=self._new("call") if breaks else None,
        )
        if not (turn.before or turn.calls or turn.refused or turn.broken):
            turn.before = self._new("before")
        return turn
