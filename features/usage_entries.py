"""The usage of calls that a feature makes for a response: it counts as that of proxied requests."""

from dataclasses import dataclass
from uuid import UUID

from models.db.database import Jsonb, execute, retry_while_unavailable
from models.db.queries.usage import INSERT_PROXIED
from models.prices import UsedAmounts
from models.wire.token_counts import TokenUsage, UsageKind
from worker.run.resources import Resources


@dataclass(frozen=True, slots=True)
class FeatureCall:
    """A call of an upstream."""

    id: UUID
    """counts once, however often it is added"""
    project: UUID
    api_key: UUID | None
    kind: UsageKind
    model: str
    upstream: str
    usage: TokenUsage
    units: int = 0
    """of its kind: images, say"""


async def count_call(resources: Resources, call: FeatureCall) -> None:
    """Adds the call to the usage of its project. Waits while PostgreSQL is away."""
    usage = call.usage
    amounts = UsedAmounts(
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        units=call.units,
        has_tokens=bool(usage.input_tokens or usage.output_tokens),
    )
    entry = {
        "entry_id": str(call.id),
        "project_id": str(call.project),
        "api_key_id": None if call.api_key is None else str(call.api_key),
        "model": call.model,
        "upstream": call.upstream,
        "kind": call.kind.value,
        "requests": 1,
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "units": call.units,
        "cost": resources.prices.cost(call.model, call.upstream, amounts),
    }
    values = {"entries": Jsonb([entry])}
    await retry_while_unavailable(
        lambda: execute(resources.pool, INSERT_PROXIED, values), "usage_waits"
    )
