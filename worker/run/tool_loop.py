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
from models.wire.counting import COUNT_INPUT_TOKENS, COUNTED_BY
from models.wire.events import Event, Item
from models.wire.response import ResponseFacts, output_text
from worker.log.event_log import EventLog
from worker.run.compaction import Compactions, ModelReply
from worker.run.counting import TokenCount
from worker.run.model_call import ModelCaller
from worker.run.output import Entry, Output
from worker.run.resources import Resources
from worker.tools.provider import ToolCallError, ToolResult
from worker.tools.toolbox import Toolbox
from worker.translation.chat.request import relax_tool_choice
from worker.translation.history.compaction import CompactionTurn
from worker.translation.history.measure import count_tokens
from worker.translation.history.truncation import shortened_histories
from worker.translation.items.text_items import OpenItem
from worker.translation.tool_catalog import ToolCatalog, build_tool_catalog
from worker.translation.turn import Outcome, Turn
from worker.translation.usage import Usage
from worker.uncancellable import run_uncancellable
from worker.upstream.overflow import OVERFLOW

logger = structlog.get_logger()

_UNKNOWN_OUTCOME = (
    "The server that ran this call was lost before the answer came. What it was asked to do may or may not have happened; "
    "it was not tried again."
)


class ToolLoop:
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
        is_draining: Callable[[], bool],
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
        self._is_draining = is_draining
        self._omitted_share = 0.0
        """The share of the history that did not fit the model's context (worker/translation/history/truncation.py)."""
        self._last_input_count: tuple[int, int] | None = None
        """The tokens that the upstream counted in the last turn's input, and how many items of output that held."""
        self._model_caller = ModelCaller(claim, facts, log, output, resources)

    @property
    def current_turn(self) -> Turn[Any] | None:
        """The turn that is not stored yet."""
        return self._model_caller.current_turn

    async def run(self) -> Outcome | None:
        """Goes on until nothing is left to do; None: it stopped before the next step because it is to be handed over.

        Raises RunError for what ends the response.
        """
        output = self._output
        if COUNT_INPUT_TOKENS in self._facts.parameters:
            return await self._run_count()
        self._toolbox.pending(
            self._full_history()
        )  # so that the tools know what an earlier attempt had learnt of them
        await self._run_calls()
        while not output.open_calls:
            if output.waits_for_client:
                return Outcome("completed")
            if self._compactions.is_only_compaction and output.entries:
                return Outcome("completed")
            if self._is_draining():
                return None
            if not self._compactions.is_only_compaction and await self._run_pending():
                continue
            if output.turns >= self._resources.settings.limits.turns:
                return Outcome("incomplete", incomplete_reason="max_messages")
            if await self._needs_compaction():
                await self._compact()
                continue
            try:
                outcome, translator = await self._run_turn()
            except UpstreamFailed as failure:
                if (
                    failure.reason != OVERFLOW
                    or self._model_caller.has_emitted
                    or not self._may_compact(self._full_history())
                ):
                    raise
                await self._compact()
                continue
            if not translator.needs_another_turn:
                return outcome
            if translator.usage is not None:
                self._last_input_count = (translator.usage["input_tokens"], len(output.entries))
            await run_uncancellable(self._checkpoint(translator.items, translator))
            await self._run_calls()
        return None

    async def _run_pending(self) -> bool:
        """Runs what must be run before the model speaks: tools listed, approved calls made. False: there was nothing."""
        first = self._output.next_index
        calls = [
            opening(first + at, self._resources.new_id)
            for at, opening in enumerate(self._toolbox.pending(self._full_history()))
        ]
        if not calls:
            return False
        for call in calls:
            self._resources.journal.write(self._log, [*call.open_events(), *call.arguments_done()])
        await run_uncancellable(self._checkpoint(calls, None))
        await self._run_calls()
        return True

    def _full_history(self) -> list[Item]:
        return self._compactions.expand([*self._history, *self._output.as_history])

    # --- compaction ---

    async def _needs_compaction(self) -> bool:
        """Whether the history is to be summed up before the next turn."""
        if self._compactions.is_only_compaction:
            return True
        history = self._full_history()
        return self._may_compact(history) and await self._input_tokens(history) > (
            self._compactions.threshold or 0
        )

    def _may_compact(self, history: list[Item]) -> bool:
        return self._compactions.threshold is not None and self._compactions.is_possible(history)

    async def _input_tokens(self, history: list[Item]) -> int:
        """Tokens of what the model would be told: as the upstream counted them the last time and what was said since, else counted anew."""
        if self._last_input_count is not None:
            tokens, items = self._last_input_count
            return tokens + count_tokens(self._output.as_history[items:])
        return (await self._count_tokens(history)).tokens

    async def _count_tokens(self, history: list[Item]) -> TokenCount:
        parameters = {
            name: value
            for name, value in self._facts.parameters.items()
            if name != COUNT_INPUT_TOKENS
        }
        return await self._model_caller.count(
            parameters,
            history,
            build_tool_catalog(parameters, history, self._toolbox.server_functions()),
        )

    async def _run_count(self) -> Outcome:
        """The end of a response that is only counted."""
        count = await self._count_tokens(self._full_history())
        self._output.usage = {
            **Usage(input_tokens=count.tokens, total_tokens=count.tokens).to_json(),
            COUNTED_BY: count.source,
        }
        return Outcome("completed")

    async def _compact(self) -> None:
        """Puts a compaction in the place of the history. It is stored before anything follows; until then an attempt begins it anew."""
        await self._resources.ownership.wait_until_fresh()
        self._model_caller.current_turn = compaction = CompactionTurn(
            self._resources.new_id, first_index=self._output.next_index
        )
        self._resources.journal.write(self._log, compaction.open_events())
        content = await self._compactions.summary(
            self._full_history(), self._call_model, compaction.add_call_usage
        )
        await run_uncancellable(
            self._checkpoint(compaction.items, compaction, compaction.complete(content))
        )
        self._last_input_count, self._omitted_share = None, 0.0

    async def _call_model(self, parameters: dict[str, Any], history: list[Item]) -> ModelReply:
        """What the model says to this, told to nobody."""
        _, turn = await self._model_caller.call(parameters, history, ToolCatalog(), visible=False)
        return ModelReply(output_text(turn.output), turn.usage)

    # --- a turn ---

    async def _run_turn(self) -> tuple[Outcome, Turn[Any]]:
        """One answer of the model. With `truncation: auto` it is told ever less, until that fits its context."""
        await self._resources.ownership.wait_until_fresh()
        parameters = (
            self._facts.parameters
            if not self._output.calls_made
            else relax_tool_choice(self._facts.parameters)
        )
        history = self._full_history()
        tool_catalog = build_tool_catalog(parameters, history, self._toolbox.server_functions())
        if parameters.get("truncation") != "auto" or self._may_compact(history):
            return await self._model_caller.call(parameters, history, tool_catalog)
        overflow: UpstreamFailed | None = None
        for share, shorter in shortened_histories(history, self._omitted_share):
            self._omitted_share = share
            try:
                return await self._model_caller.call(parameters, shorter, tool_catalog)
            except UpstreamFailed as failure:
                if failure.reason != OVERFLOW or self._model_caller.has_emitted:
                    raise
                overflow = failure
        assert overflow is not None
        raise overflow

    async def _checkpoint(
        self,
        items: Sequence[OpenItem],
        translator: Turn[Any] | None,
        closing_events: Sequence[Event] = (),
    ) -> None:
        """Stores a step, and is then between turns. `last`: events of it that are shown when it is stored."""
        answers = translator.rejected_calls if translator is not None else {}
        usage = translator.usage if translator is not None else None
        step = self._output.step(items, answers, usage, turns=0 if translator is None else 1)
        resources = self._resources
        await resources.journal.store_then_publish(
            self._log,
            closing_events,
            lambda tail: resources.ownership.checkpoint(self._claim, tail, step),
        )
        self._output.add(step, items)
        self._model_caller.current_turn = None

    # --- calls ---

    async def _run_calls(self) -> None:
        """Runs all open calls, side by side unless the client wants them one at a time. When retiring, begins none."""
        side_by_side = self._facts.parameters.get("parallel_tool_calls", True)
        room = asyncio.Semaphore(self._resources.settings.tools.parallel if side_by_side else 1)
        try:
            async with asyncio.TaskGroup() as group:
                for entry in self._output.open_calls:
                    group.create_task(self._run_call(entry, room))
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None

    async def _run_call(self, entry: Entry, semaphore: asyncio.Semaphore) -> None:
        async with semaphore:
            if self._is_draining():
                return
            if entry.is_started and not self._toolbox.is_repeatable(entry.item):
                await run_uncancellable(self._finish_call(entry, ToolCallError(_UNKNOWN_OUTCOME)))
                return
            ownership = self._resources.ownership
            await ownership.wait_until_fresh()
            await run_uncancellable(ownership.start_call(self._claim, entry.position))
            result = await self._toolbox.run(entry.item)
            await run_uncancellable(self._finish_call(entry, result))

    async def _finish_call(self, entry: Entry, result: ToolResult | ToolCallError) -> None:
        """Stores a call's answer, then shows it."""
        call = entry.call
        assert call is not None
        answer: Any
        if isinstance(result, ToolCallError):
            events, answer = (
                call.result(call.failure_fields(str(result)), failed=True),
                f"Error: {result}",
            )
        else:
            events, answer = call.result(result.fields, failed=result.failed), result.tool_output
        item = call.to_json()
        ownership = self._resources.ownership
        await self._resources.journal.store_then_publish(
            self._log,
            events,
            lambda tail: ownership.finish_call(self._claim, tail, entry.position, item, answer),
        )
        entry.item, entry.tool_output, entry.call = item, answer, None
