"""The tool loop: turns of the model, and between them the tool calls that this server runs.

Each step is stored in Postgres before the next one begins: a turn with all its items, then each
call as started, then with its result. So another worker continues after the last finished step. A
call that was started and has no result may or may not have run: it is repeated only if that does no
harm, else the model gets an error and decides (docs/tools.md).
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from models.errors import LimitReached, UpstreamFailed
from models.wire.events import Event, Item
from models.wire.steering import STEERED
from worker.metrics import observe_tool_call
from worker.run.context import RunContext
from worker.run.model_call import ModelCaller
from worker.run.moderation import CONTENT_FILTER
from worker.run.output import Entry
from worker.run.purposes import compact
from worker.run.spans import end_tool_span, start_tool_span
from worker.tools.provider import ToolCallError, ToolResult
from worker.translation.history.size import count_tokens, shortened_histories
from worker.translation.items.server_calls import OpenServerCall
from worker.translation.request_parameters import relax_tool_choice, unmet_demand
from worker.translation.turn import Turn, TurnOutcome

_UNKNOWN_OUTCOME = (
    "The server that ran this call was lost before the answer came. "
    "What it was asked to do may or may not have happened; it was not tried again."
)


_NO_ROOM = "The call was not made: the response has as much output as it may have."


async def run_tool_loop(context: RunContext) -> TurnOutcome | None:
    """Runs a response to its outcome. None: the process stops, release it. Raises RunError."""
    return await ToolLoop(context).run()


class ToolLoop:
    """The turns and tool calls of one run."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._output = context.output
        self._toolbox = context.toolbox
        self._compactions = context.compactions
        self._ownership = context.resources.ownership
        self._settings = context.resources.settings
        self._model = ModelCaller(context)
        self._omitted_share = 0.0
        """The share of the history that did not fit into the model's context."""
        self._last_input_count: tuple[int, int] | None = None
        """Input tokens of the last turn by the upstream's count, and the output items in it."""

    async def run(self) -> TurnOutcome | None:
        """Runs turns and calls until the response has an outcome; None when the process stops."""
        moderation = self._context.moderation
        if moderation is not None and not await moderation.admits_input():
            return TurnOutcome("incomplete", incomplete_reason=CONTENT_FILTER)
        # The tools read from the history what earlier attempts have learned, e.g. tool lists.
        self._toolbox.pending(self._context.full_history())
        for entry in self._output.closed_calls:
            await self._context.writer.store_closed_call(entry)
        await self._run_calls()
        while not self._output.open_calls:
            if self._output.waits_for_client:
                return TurnOutcome("completed")
            if self._is_steered:
                return TurnOutcome("incomplete", incomplete_reason=STEERED)
            if self._context.is_draining():
                return None
            if await self._run_pending():
                continue
            self._require_room()
            if self._output.turns >= self._settings.limits.turns:
                return TurnOutcome("incomplete", incomplete_reason="max_messages")
            result = None if await self._needs_compaction() else await self._try_turn()
            if result is None:
                await self._compact()
                continue
            outcome, turn = result
            if not turn.needs_another_turn:
                return self._checked(outcome, turn)
            if (usage := turn.upstream_usage) is not None:
                self._last_input_count = (usage["input_tokens"], len(self._output.entries))
            await self._context.writer.checkpoint(turn.items, turn)
            await self._run_calls()
        return None

    def _checked(self, outcome: TurnOutcome, turn: Turn[Any]) -> TurnOutcome:
        """The outcome of the last turn, with what the request demanded and the output lacks."""
        if outcome.status != "completed":
            return outcome
        output = [*self._output.items, *turn.output]
        return replace(outcome, unmet=unmet_demand(self._context.parameters, output))

    @property
    def _is_steered(self) -> bool:
        """Whether input has arrived, and a turn is finished: its successor goes on with both."""
        return self._context.attempt.steers > 0 and self._output.turns > 0

    @property
    def _has_too_much_output(self) -> bool:
        return self._output.size > self._settings.limits.response_output

    def _require_room(self) -> None:
        """Raises LimitReached if the response has more output than it may have."""
        if self._has_too_much_output:
            limit = self._settings.limits.response_output
            raise LimitReached(
                f"The output of the response exceeded the limit of {limit} bytes in all turns.",
                reason="response_output_limit",
                status=502,
            )

    async def _run_pending(self) -> bool:
        """Runs what comes before the next turn: lists of tools and approved calls.

        Returns False if there was nothing to run.
        """
        first = self._output.next_index
        new_id = self._context.resources.new_id
        pending = self._toolbox.pending(self._context.full_history())
        calls = [open_call(first + at, new_id) for at, open_call in enumerate(pending)]
        if not calls:
            return False
        # The other calls are sent one after the other, each when the one before has its result.
        self._context.writer.write([*calls[0].open_events(), *calls[0].arguments_done()])
        await self._context.writer.checkpoint(calls, None)
        await self._run_calls()
        return True

    # --- compaction ---

    async def _needs_compaction(self) -> bool:
        """Whether the history has more tokens than the request's compaction threshold."""
        history = self._context.full_history()
        threshold = self._compactions.threshold
        if threshold is None or not self._compactions.is_possible(history):
            return False
        return await self._input_tokens(history) > threshold

    async def _input_tokens(self, history: list[Item]) -> int:
        """Tokens of the next turn's input: the last turn's count and what was added, or a count."""
        if self._last_input_count is None:
            return (await self._model.count(history)).tokens
        tokens, items = self._last_input_count
        return tokens + count_tokens(self._output.as_history[items:])

    async def _compact(self) -> None:
        await compact(self._context, self._model)
        self._last_input_count, self._omitted_share = None, 0.0

    # --- turns ---

    async def _try_turn(self) -> tuple[TurnOutcome, Turn[Any]] | None:
        """Runs a turn; None if the history is too long for the model and can be compacted."""
        try:
            return await self._run_turn()
        except UpstreamFailed as failure:
            if self._model.is_retryable_overflow(failure) and self._compactions.is_possible(
                self._context.full_history()
            ):
                return None
            raise

    async def _run_turn(self) -> tuple[TurnOutcome, Turn[Any]]:
        """Runs a turn; `truncation: auto` sends less of the history until the model takes it."""
        parameters = self._context.parameters
        if self._output.calls_made:
            parameters = relax_tool_choice(parameters)
        history = self._context.full_history()
        model_input = self._model.input_of(parameters, history)
        if parameters.get("truncation") != "auto" or self._compactions.is_possible(history):
            return await self._model.call(model_input)
        overflow: UpstreamFailed | None = None
        for share, shorter in shortened_histories(history, self._omitted_share):
            self._omitted_share = share
            try:
                return await self._model.call(replace(model_input, history=shorter))
            except UpstreamFailed as failure:
                if not self._model.is_retryable_overflow(failure):
                    raise
                overflow = failure
        assert overflow is not None
        raise overflow

    # --- tool calls ---

    async def _run_calls(self) -> None:
        """Runs all open calls, in parallel if `parallel_tool_calls` and their tools allow it.

        Each result is stored when it comes. The stream shows them in the order of the calls
        (worker/run/output.py). Starts no call once the process stops.
        """
        is_parallel = self._context.parameters.get("parallel_tool_calls", True)
        semaphore = asyncio.Semaphore(self._settings.tools.parallel if is_parallel else 1)
        try:
            async with asyncio.TaskGroup() as group:
                in_order: list[Entry] = []
                for entry in self._output.open_calls:
                    if self._toolbox.runs_in_order(entry.item):
                        in_order.append(entry)
                    else:
                        group.create_task(self._run_call(entry, semaphore))
                group.create_task(self._run_in_order(in_order, semaphore))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _run_in_order(self, entries: list[Entry], semaphore: asyncio.Semaphore) -> None:
        for entry in entries:
            await self._run_call(entry, semaphore)

    async def _run_call(self, entry: Entry, semaphore: asyncio.Semaphore) -> None:
        async with semaphore:
            if self._context.is_draining():
                return
            if self._has_too_much_output:
                await self._finish_call(entry, ToolCallError(_NO_ROOM))
                return
            if entry.is_started and not self._toolbox.is_repeatable(entry.item):
                kept = await self._toolbox.recover(entry.item)
                await self._finish_call(entry, kept or ToolCallError(_UNKNOWN_OUTCOME))
                return
            await self._ownership.wait_until_fresh()
            with self._counted(entry):
                await self._context.writer.start_call(entry)
                await self._finish_call(entry, await self._observed_call(entry.item))

    async def _observed_call(self, item: Item) -> ToolResult | ToolCallError:
        """The result of the call, with its metrics and its span."""
        has_content = self._settings.traces.content
        span = start_tool_span(self._context.span, item, has_content=has_content)
        started_at = time.monotonic()
        result: ToolResult | ToolCallError | None = None
        try:
            result = await self._toolbox.run(item)
        finally:
            end_tool_span(span, result, has_content=has_content)
        failed = isinstance(result, ToolCallError) or result.failed
        observe_tool_call(item["type"], time.monotonic() - started_at, failed=failed)
        return result

    @contextmanager
    def _counted(self, entry: Entry) -> Iterator[None]:
        """Counts the call while it runs, until its result is stored, if it must not run twice."""
        count = 0 if self._toolbox.is_repeatable(entry.item) else 1
        self._context.attempt.unrepeatable_calls += count
        try:
            yield
        finally:
            self._context.attempt.unrepeatable_calls -= count

    async def _finish_call(self, entry: Entry, result: ToolResult | ToolCallError) -> None:
        assert entry.call is not None
        events, tool_output = _close_call(entry.call, result)
        await self._context.writer.finish_call(entry, events, tool_output)


def _close_call(
    call: OpenServerCall, result: ToolResult | ToolCallError
) -> tuple[list[Event], Any]:
    """Closes the call with its result: the events, and what the model gets for it."""
    if isinstance(result, ToolCallError):
        events = call.result(call.failure_fields(str(result)), failed=True)
        return events, f"Error: {result}"
    return call.result(result.fields, failed=result.failed), result.tool_output
