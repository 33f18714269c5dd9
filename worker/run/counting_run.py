"""Counts the input tokens of a request, as the whole purpose of a response (docs/state.md)."""

from models.wire.counting import COUNTED_BY
from models.wire.token_counts import TokenCounts
from worker.run.context import RunContext
from worker.run.model_call import ModelCaller
from worker.translation.turn import Outcome
from worker.translation.usage import usage_json


async def run_count(context: RunContext) -> Outcome:
    """Puts the count into the usage of the response. Raises RunError."""
    count = await ModelCaller(context).count(context.full_history())
    usage = usage_json(TokenCounts(input=count.tokens, output=0)) or {}
    context.output.usage = {**usage, COUNTED_BY: count.source}
    return Outcome("completed")
