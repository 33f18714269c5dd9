"""What forwarded requests have used, written to the database together."""

import asyncio
from dataclasses import asdict

import psycopg
import structlog

from models.db.database import DATABASE_UNAVAILABLE, Jsonb, Pool, execute
from models.db.queries.api_keys import ApiKey
from models.db.queries.usage import INSERT_PROXIED
from models.ids import new_uuid
from models.prices import PriceList, UsedAmounts
from models.wire.proxied_usage import TokenUsage, UsageKind

logger = structlog.get_logger()

_INTERVAL = 1.0
_MAX_WAITING = 100_000
"""Entries that wait while Postgres is unavailable; further ones are dropped."""


class ProxiedUsage:
    """Collects entries of one web process, and writes them once a second. A process that is killed
    loses those of its last second."""

    def __init__(self, pool: Pool, prices: PriceList | None = None) -> None:
        """`prices` None: no cost is known."""
        self._pool = pool
        self._prices = prices
        self._waiting: list[dict[str, object]] = []

    def add_tokens(
        self,
        key: ApiKey,
        model: str,
        upstream: str,
        usage: TokenUsage,
        kind: UsageKind = UsageKind.COMPLETIONS,
        units: int = 0,
        tier: str | None = None,
    ) -> None:
        """A model was called for this key. `model`: as clients name it. `units`: what its kind
        counts besides tokens. `tier`: the service tier, for the cost."""
        if len(self._waiting) >= _MAX_WAITING:
            return
        tokens = asdict(usage)
        del tokens["seconds"]
        self._waiting.append(
            {
                "entry_id": str(new_uuid()),
                "project_id": str(key.project_id),
                "api_key_id": str(key.id),
                "model": model,
                "upstream": upstream,
                "service_tier": None,
                "kind": kind.value,
                "requests": 1,
                **tokens,
                "units": units,
                "cost": self._cost(model, upstream, usage, units, tier),
            }
        )

    def _cost(
        self, model: str, upstream: str, usage: TokenUsage, units: int, tier: str | None
    ) -> int | None:
        """None: not known. Without any token the upstream has not counted them."""
        if self._prices is None:
            return None
        amounts = UsedAmounts(
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            units=units,
            has_tokens=bool(usage.input_tokens or usage.output_tokens),
        )
        return self._prices.cost(model, upstream, amounts, tier=tier)

    async def run(self) -> None:
        """Writes what was collected. Never returns."""
        while True:
            await asyncio.sleep(_INTERVAL)
            await self.store()

    async def store(self) -> None:
        """Writes what was collected until now. If Postgres is unavailable, it is kept."""
        entries = self._waiting
        if not entries:
            return
        self._waiting = []
        try:
            await self._insert(entries)
        except DATABASE_UNAVAILABLE as error:
            logger.warning("proxied_usage_not_stored", error=str(error).strip())
            self._waiting = entries + self._waiting

    async def _insert(self, entries: list[dict[str, object]]) -> None:
        """Inserts the entries. One that PostgreSQL refuses is left out, and logged: it must not
        cost the others. Raises what DATABASE_UNAVAILABLE names."""
        try:
            await execute(self._pool, INSERT_PROXIED, {"entries": Jsonb(entries)})
        except psycopg.DataError as error:
            if len(entries) == 1:
                fields = {name: entries[0][name] for name in ("project_id", "kind", "upstream")}
                logger.exception("proxied_usage_refused", error=str(error).strip(), **fields)
                return
            middle = len(entries) // 2
            await self._insert(entries[:middle])
            await self._insert(entries[middle:])
