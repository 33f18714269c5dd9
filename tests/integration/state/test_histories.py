"""Chains and conversations of any mix, over HTTP: what the upstream is told in every turn (contract §7.1), against the turns as they were."""

import random
from dataclasses import dataclass, field

import pytest

from tests.support.api import JSON, Api
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    done,
    drop,
    finish,
    reasoning,
    refusal,
    text,
    usage,
)
from tests.support.histories import (
    HistoryGenerator,
    HistoryTurn,
    expected_messages,
    normalize_messages,
)

TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
TURNS = 7


def spoken(turn: HistoryTurn) -> list[Step]:
    """The upstream's part of a turn."""
    steps: list[Step] = [reasoning(turn.reasoning)] if turn.reasoning else []
    steps += [text(turn.text_before_calls)] if turn.text_before_calls else []
    steps += [call(at, name, "look", "{}") for at, name in enumerate(turn.calls)]
    steps += [text(turn.text_after_calls)] if turn.text_after_calls else []
    steps += [refusal(turn.refusal)] if turn.refusal else []
    steps += [call(0, turn.broken_call, "look", "{")] if turn.broken_call else []
    return [
        *steps,
        finish("length" if turn.broken_call else "tool_calls" if turn.calls else "stop"),
        usage(),
        done(),
    ]


@dataclass(slots=True)
class Branch:
    """Where something can be said next."""

    turns: list[HistoryTurn] = field(default_factory=list)
    response: str | None = None
    """of a chain: the last one"""
    unsent: list[JSON] = field(default_factory=list)
    """of a chain: turns that the client makes up itself; they go with its next input"""

    @property
    def open_calls(self) -> list[str]:
        return self.turns[-1].calls if self.turns else []


@dataclass(slots=True)
class Story:
    """One chain or conversation, as chance has it."""

    api: Api
    fake: FakeUpstream
    chance: random.Random
    conversation: str | None = None
    branches: list[Branch] = field(default_factory=lambda: [Branch()])

    async def go_on(self, author: HistoryGenerator) -> None:
        """One more turn: the model's, one that fails, or one that the client makes up."""
        branch = (
            self.branches[-1]
            if self.conversation or self.chance.random() < 0.7
            else self.chance.choice(self.branches)
        )
        turn = author.turn(branch.open_calls, broken=self.chance.random() < 0.15)
        kind = self.chance.random()
        if kind < 0.2:
            await self._made_up(branch, turn)
        elif kind < 0.35:
            await self._failing(branch, turn)
        else:
            self.branches.append(await self._asked(branch, turn, spoken(turn), fails=False))

    async def _made_up(self, branch: Branch, turn: HistoryTurn) -> None:
        items = [*turn.input_items, *turn.output_items()]
        if self.conversation:
            added = await self.api.call(
                "POST", f"/conversations/{self.conversation}/items", {"items": items}
            )
            assert added.status == 200, added.raw
            items = []
        self.branches.append(
            Branch([*branch.turns, turn], branch.response, [*branch.unsent, *items])
        )

    async def _failing(self, branch: Branch, turn: HistoryTurn) -> None:
        """A chain goes on from it, with what output there is; to a conversation it has not happened."""
        half = HistoryTurn(input_items=turn.input_items, text_before_calls="half of it")
        failed = await self._asked(branch, half, [text("half of it"), drop()], fails=True)
        if not self.conversation:
            self.branches.append(failed)

    async def _asked(
        self, branch: Branch, turn: HistoryTurn, script: list[Step], *, fails: bool
    ) -> Branch:
        model = self.fake.script(script)
        before = (
            {"conversation": self.conversation}
            if self.conversation
            else {"previous_response_id": branch.response}
        )
        body = {"input": [*branch.unsent, *turn.input_items], "tools": TOOLS, **before}
        if fails or self.chance.random() < 0.5:
            response = await self.api.wait_for_end(await self.api.create_background(model, **body))
        else:
            response = await self.api.create(model, **body)
        assert response["status"] == (
            "failed" if fails else "incomplete" if turn.broken_call else "completed"
        )
        assert normalize_messages(self.fake.requests_for(model)[0].messages) == expected_messages(
            branch.turns, turn.input_items
        )
        return Branch([*branch.turns, turn], response["id"])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["chain", "conversation"])
async def test_whatever_was_said_is_told_in_order(
    api: Api, fake: FakeUpstream, kind: str, seed: int
) -> None:
    chance = random.Random(f"{kind} {seed}")
    conversation = (
        (await api.call("POST", "/conversations", {})).body["id"]
        if kind == "conversation"
        else None
    )
    story = Story(api, fake, chance, conversation)
    author = HistoryGenerator(chance)
    for _ in range(TURNS):
        await story.go_on(author)
    if conversation is not None:
        page = await api.call("GET", f"/conversations/{conversation}/items?limit=100&order=asc")
        listed = [
            item.get("call_id")
            or "".join(part["text"] for part in item["content"] if "text" in part)
            for item in page.body["data"]
        ]
        said = [
            item
            for turn in story.branches[-1].turns
            for item in [*turn.input_items, *turn.output_items()]
        ]
        assert [words for words in listed if words] == [
            word for item in said if (word := _word(item))
        ]


def _word(item: JSON) -> str:
    """What the item is recognised by in a list; refusals and reasoning by nothing or their text."""
    content = item.get("call_id") or item["content"]
    return (
        content
        if isinstance(content, str)
        else "".join(part["text"] for part in content if "text" in part)
    )
