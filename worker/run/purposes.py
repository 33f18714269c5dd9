"""Compactions and counts: the whole purpose of a response (docs/state.md). A compaction is made
before a turn of the tool loop too."""

from typing import Any

from models.wire.events import Item
from models.wire.response import output_text
from models.wire.token_counts import COUNTED_BY, TokenCounts
from worker.run.compaction import ModelReply
from worker.run.context import RunContext
from worker.run.model_call import ModelCaller, ModelInput
from worker.translation.history.compaction import CompactionTurn
from worker.translation.token_usage import usage_json
from worker.translation.turn import TurnOutcome


async def run_count(context: RunContext) -> TurnOutcome:
    """Puts the count of the input tokens into the usage of the response. Raises RunError."""
    count = await ModelCaller(context).count(context.full_history())
    usage = usage_json(TokenCounts(input=count.tokens, output=0)) or {}
    context.output.usage = {**usage, COUNTED_BY: count.source}
    return TurnOutcome("completed")


async def run_compaction(context: RunContext) -> TurnOutcome | None:
    """Runs a response whose purpose is a compaction. None: the process stops, release it."""
    if not context.output.entries:  # else an earlier attempt has stored the compaction
        if context.is_draining():
            return None
        await compact(context, ModelCaller(context))
    return TurnOutcome("completed")


async def compact(context: RunContext, model: ModelCaller) -> None:
    """Adds a compaction of the history to the output and stores it.

    It is stored before the next step begins; until then a new attempt makes it again. Raises
    RunError.
    """

    async def call_model(parameters: dict[str, Any], history: list[Item]) -> ModelReply:
        _, turn = await model.call(ModelInput(parameters, history), visible=False)
        return ModelReply(output_text(turn.output), turn.usage)

    compaction = CompactionTurn(context.resources.new_id, first_index=context.output.next_index)
    context.attempt.current_turn = compaction
    context.writer.write(compaction.open_events())
    history = await context.attachments.inline(context.history_to_store())
    content = await context.compactions.summary(history, call_model, compaction.add_call_usage)
    await context.writer.checkpoint(compaction.items, compaction, compaction.complete(content))
