"""The tool loop: turns of the model, and between them the calls that this server runs (design §4.4).

What is finished rests in Postgres before the next thing begins: a turn with all its items, then each call as begun, then as answered. So
another worker goes on after the last finished step. A call that was begun and never answered may or may not have taken effect; it is
repeated only where that does no harm, else the model is told and decides (design §4.6).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from models.errors import UpstreamFailed
from models.ownership.claims import Claim
from models.wire.counting import COUNTED, COUNTED_BY
from models.wire.events import Event, Item
from models.wire.response import ResponseFacts, output_text
from worker.log.event_log import EventLog
from worker.run.compaction import Compactions, Heard
from worker.run.counting import Count
from worker.run.model_call import Model
from worker.run.output import Entry, Output
from worker.run.resources import Resources
from worker.tools.provider import Refusal, Result
from worker.tools.toolbox import Toolbox
from worker.translation.chat.request import after_a_call
from worker.translation.history.compaction import CompactionTurn
from worker.translation.history.measure import tokens_of
from worker.translation.history.truncation import ever_shorter
from worker.translation.items.text_items import OpenItem
from worker.translation.tool_catalog import Offer, offer
from worker.translation.turn import Outcome, SpokenTurn
from worker.translation.usage import Usage
from worker.uncancellable import undivided
from worker.upstream.overflow import OVERFLOW

logger = structlog.get_logger()

_UNKNOWN_OUTCOME = (
    "The server that ran this call was lost before the answer came. What it was asked to do may or may not have happened; "
    "it was not tried again."
)


class Turns:
    """The work of one run."""

    def __init__(
        self,
        claim: Claim,
        facts: ResponseFacts,
        log: EventLog,
        output: Output,
        resources: Resources,
        *,
        history: list[Item],
        toolbox: Toolbox,
        compactions: Compactions,
        is_retiring: Callable[[], bool],
    ) -> None:
        """`history`: what was said before this response's output. `is_retiring`: whether to stop before the next step."""
        self._claim = claim
        self._facts = facts
        self._log = log
        self._output = output
        self._resources = resources
        self._history = history
        self._toolbox = toolbox
        self._compactions = compactions
        self._is_retiring = is_retiring
        self._left_out = 0.0
        """The share of the history that did not fit the model's context (worker/translation/history/truncation.py)."""
        self._told_before: tuple[int, int] | None = None
        """The tokens that the upstream counted in the last turn's input, and how many items of output that held."""
        self._model = Model(claim, facts, log, output, resources)

    @property
    def speaking(self) -> SpokenTurn[Any] | None:
        """The turn that is not stored yet."""
        return self._model.speaking

    async def run(self) -> Outcome | None:
        """Goes on until nothing is left to do; None: it stopped before the next step because it is to be handed over.

        Raises RunError for what ends the response.
        """
        output = self._output
        if COUNTED in self._facts.parameters:
            return await self._counted()
        self._toolbox.due(
            self._said()
        )  # so that the tools know what an earlier attempt had learnt of them
        await self._answer_calls()
        while not output.open_calls:
            if output.waits_for_client:
                return Outcome("completed")
            if self._compactions.is_all and output.entries:
                return Outcome("completed")
            if self._is_retiring():
                return None
            if not self._compactions.is_all and await self._prepare():
                continue
            if output.turns >= self._resources.settings.limits.turns:
                return Outcome("incomplete", incomplete_reason="max_messages")
            if await self._is_too_long():
                await self._compact()
                continue
            try:
                outcome, translator = await self._turn()
            except UpstreamFailed as failure:
                if (
                    failure.reason != OVERFLOW
                    or self._model.has_spoken
                    or not self._may_compact(self._said())
                ):
                    raise
                await self._compact()
                continue
            if not translator.goes_on:
                return outcome
            if translator.usage is not None:
                self._told_before = (translator.usage["input_tokens"], len(output.entries))
            await undivided(self._checkpoint(translator.items, translator))
            await self._answer_calls()
        return None

    async def _prepare(self) -> bool:
        """Runs what must be run before the model speaks: tools listed, approved calls made. False: there was nothing."""
        first = self._output.next_index
        calls = [
            opening(first + at, self._resources.new_id)
            for at, opening in enumerate(self._toolbox.due(self._said()))
        ]
        if not calls:
            return False
        for call in calls:
            self._resources.journal.write(self._log, [*call.opened(), *call.asked()])
        await undivided(self._checkpoint(calls, None))
        await self._answer_calls()
        return True

    def _said(self) -> list[Item]:
        return self._compactions.opened([*self._history, *self._output.said])

    # --- compaction ---

    async def _is_too_long(self) -> bool:
        """Whether the history is to be summed up before the next turn."""
        if self._compactions.is_all:
            return True
        history = self._said()
        return self._may_compact(history) and await self._size(history) > (
            self._compactions.threshold or 0
        )

    def _may_compact(self, history: list[Item]) -> bool:
        return self._compactions.threshold is not None and self._compactions.is_possible(history)

    async def _size(self, history: list[Item]) -> int:
        """Tokens of what the model would be told: as the upstream counted them the last time and what was said since, else counted anew."""
        if self._told_before is not None:
            tokens, items = self._told_before
            return tokens + tokens_of(self._output.said[items:])
        return (await self._count(history)).tokens

    async def _count(self, history: list[Item]) -> Count:
        parameters = {
            name: value for name, value in self._facts.parameters.items() if name != COUNTED
        }
        return await self._model.count(
            parameters, history, offer(parameters, history, self._toolbox.offered())
        )

    async def _counted(self) -> Outcome:
        """The end of a response that is only counted."""
        count = await self._count(self._said())
        self._output.usage = {
            **Usage(input_tokens=count.tokens, total_tokens=count.tokens).to_json(),
            COUNTED_BY: count.source,
        }
        return Outcome("completed")

    async def _compact(self) -> None:
        """Puts a compaction in the place of the history. It is stored before anything follows; until then an attempt begins it anew."""
        await self._resources.ownership.certain()
        self._model.speaking = making = CompactionTurn(
            self._resources.new_id, first_index=self._output.next_index
        )
        self._resources.journal.write(self._log, making.opened())
        content = await self._compactions.summary(self._said(), self._ask, making.spend_usage)
        await undivided(self._checkpoint(making.items, making, making.sealed(content)))
        self._told_before, self._left_out = None, 0.0

    async def _ask(self, parameters: dict[str, Any], history: list[Item]) -> Heard:
        """What the model says to this, told to nobody."""
        _, turn = await self._model.answer(parameters, history, Offer(), aloud=False)
        return Heard(output_text(turn.output), turn.usage)

    # --- a turn ---

    async def _turn(self) -> tuple[Outcome, SpokenTurn[Any]]:
        """One answer of the model. With `truncation: auto` it is told ever less, until that fits its context."""
        await self._resources.ownership.certain()
        parameters = (
            self._facts.parameters
            if not self._output.calls_made
            else after_a_call(self._facts.parameters)
        )
        history = self._said()
        offered = offer(parameters, history, self._toolbox.offered())
        if parameters.get("truncation") != "auto" or self._may_compact(history):
            return await self._model.answer(parameters, history, offered)
        overflow: UpstreamFailed | None = None
        for share, shorter in ever_shorter(history, self._left_out):
            self._left_out = share
            try:
                return await self._model.answer(parameters, shorter, offered)
            except UpstreamFailed as failure:
                if failure.reason != OVERFLOW or self._model.has_spoken:
                    raise
                overflow = failure
        assert overflow is not None
        raise overflow

    async def _checkpoint(
        self,
        items: Sequence[OpenItem],
        translator: SpokenTurn[Any] | None,
        last: Sequence[Event] = (),
    ) -> None:
        """Stores a step, and is then between turns. `last`: events of it that are shown when it is stored."""
        answers = translator.refusals if translator is not None else {}
        usage = translator.usage if translator is not None else None
        step = self._output.step(items, answers, usage, turns=0 if translator is None else 1)
        resources = self._resources
        await resources.journal.store_first(
            self._log, last, lambda tail: resources.ownership.checkpoint(self._claim, tail, step)
        )
        self._output.add(step, items)
        self._model.speaking = None

    # --- calls ---

    async def _answer_calls(self) -> None:
        """Runs all open calls, side by side unless the client wants them one at a time. When retiring, begins none."""
        side_by_side = self._facts.parameters.get("parallel_tool_calls", True)
        room = asyncio.Semaphore(self._resources.settings.tools.parallel if side_by_side else 1)
        try:
            async with asyncio.TaskGroup() as group:
                for entry in self._output.open_calls:
                    group.create_task(self._answer_call(entry, room))
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None

    async def _answer_call(self, entry: Entry, room: asyncio.Semaphore) -> None:
        async with room:
            if self._is_retiring():
                return
            if entry.is_started and not self._toolbox.is_repeatable(entry.item):
                await undivided(self._finish(entry, Refusal(_UNKNOWN_OUTCOME)))
                return
            ownership = self._resources.ownership
            await ownership.certain()
            await undivided(ownership.start_call(self._claim, entry.position))
            result = await self._toolbox.run(entry.item)
            await undivided(self._finish(entry, result))

    async def _finish(self, entry: Entry, result: Result | Refusal) -> None:
        """Stores a call's answer, then shows it."""
        call = entry.call
        assert call is not None
        answer: Any
        if isinstance(result, Refusal):
            events, answer = (
                call.answered(call.failure(str(result)), failed=True),
                f"Error: {result}",
            )
        else:
            events, answer = call.answered(result.fields, failed=result.failed), result.answer
        item = call.to_json()
        ownership = self._resources.ownership
        await self._resources.journal.store_first(
            self._log,
            events,
            lambda tail: ownership.finish_call(self._claim, tail, entry.position, item, answer),
        )
        entry.item, entry.answer, entry.call = item, answer, None
