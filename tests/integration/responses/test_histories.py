"""Random chains and conversations over HTTP: each request to the upstream has the right history.

The expected messages are built from the turns, not by the server's code.
"""

import random
from dataclasses import dataclass, field

import pytest

from tests.support.api import JSON, Api
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    done,
    fail,
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


def turn_steps(turn: HistoryTurn) -> list[Step]:
    """The upstream's script of a turn."""
    steps: list[Step] = [reasoning(turn.reasoning)] if turn.reasoning else []
    steps += [text(turn.text_before_calls)] if turn.text_before_calls else []
    steps += [call(index, name, "look", "{}") for index, name in enumerate(turn.calls)]
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
    """A point from which the history can continue."""

    turns: list[HistoryTurn] = field(default_factory=list)
    response: str | None = None
    """Of a chain: the id of its last response."""
    unsent: list[JSON] = field(default_factory=list)
    """Of a chain: turns that the client wrote itself and sends with its next input."""

    @property
    def open_calls(self) -> list[str]:
        return self.turns[-1].calls if self.turns else []


@dataclass(slots=True)
class RandomHistory:
    """One random chain or conversation."""

    api: Api
    fake: FakeUpstream
    randomness: random.Random
    conversation: str | None = None
    branches: list[Branch] = field(default_factory=lambda: [Branch()])

    async def add_turn(self, generator: HistoryGenerator) -> None:
        """Adds a turn: by the model, one that fails, or one that the client wrote."""
        branch = (
            self.branches[-1]
            if self.conversation or self.randomness.random() < 0.7
            else self.randomness.choice(self.branches)
        )
        turn = generator.turn(branch.open_calls, broken=self.randomness.random() < 0.15)
        kind = self.randomness.random()
        if kind < 0.2:
            await self._add_by_client(branch, turn)
        elif kind < 0.35:
            await self._add_failing(branch, turn)
        else:
            self.branches.append(await self._run_turn(branch, turn, turn_steps(turn), fails=False))

    async def _add_by_client(self, branch: Branch, turn: HistoryTurn) -> None:
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

    async def _add_failing(self, branch: Branch, turn: HistoryTurn) -> None:
        """A chain continues a failed turn with its output; a conversation does not contain it."""
        half = HistoryTurn(input_items=turn.input_items, text_before_calls="half of it")
        failed = await self._run_turn(branch, half, [text("half of it"), fail()], fails=True)
        if not self.conversation:
            self.branches.append(failed)

    async def _run_turn(
        self, branch: Branch, turn: HistoryTurn, script: list[Step], *, fails: bool
    ) -> Branch:
        model = self.fake.script(script)
        continuation = (
            {"conversation": self.conversation}
            if self.conversation
            else {"previous_response_id": branch.response}
        )
        body = {"input": [*branch.unsent, *turn.input_items], "tools": TOOLS, **continuation}
        if fails or self.randomness.random() < 0.5:
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
async def test_the_whole_history_is_sent_in_order(
    api: Api, fake: FakeUpstream, kind: str, seed: int
) -> None:
    randomness = random.Random(f"{kind} {seed}")
    conversation = (
        (await api.call("POST", "/conversations", {})).body["id"]
        if kind == "conversation"
        else None
    )
    history = RandomHistory(api, fake, randomness, conversation)
    generator = HistoryGenerator(randomness)
    for _ in range(TURNS):
        await history.add_turn(generator)
    if conversation is not None:
        page = await api.call("GET", f"/conversations/{conversation}/items?limit=100&order=asc")
        texts = [
            item.get("call_id")
            or "".join(part["text"] for part in item["content"] if "text" in part)
            for item in page.body["data"]
        ]
        items = [
            item
            for turn in history.branches[-1].turns
            for item in [*turn.input_items, *turn.output_items()]
        ]
        assert [text for text in texts if text] == [
            text for item in items if (text := text_of_item(item))
        ]


def text_of_item(item: JSON) -> str:
    """The call id or the text of an item; empty for a refusal."""
    content = item.get("call_id") or item["content"]
    return (
        content
        if isinstance(content, str)
        else "".join(part["text"] for part in content if "text" in part)
    )
