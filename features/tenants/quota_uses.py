"""What a project uses of its quotas, for operators (docs/limits.md, "Per project")."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from redis.asyncio import Redis

from models.config.groups import CacheSettings, QuotaSettings
from models.db.database import Connection, Pool, fetch_idempotent
from models.db.queries.file_contents import STORED_FILES
from models.db.queries.quotas import (
    CODE_USE,
    COUNTED_BATCHES,
    OPEN_BY_PROJECT,
    QUOTA_STATE,
    USED_CPU,
)
from models.db.queries.usage import USED_TOKENS
from models.projects.quotas import WINDOW, ProjectQuotas
from models.redis.channels import cache_share_keys
from models.redis.client import REDIS_ERRORS
from models.redis.quota_counters import CONNECTIONS, Period, quota_keys


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """One quota."""

    name: str
    used: int | None
    """None: it was not counted, or it has no limit and only Redis counts it"""
    limit: int | None
    """None: there is none"""

    @property
    def part(self) -> float:
        """Of the limit that is used; 0 if that is not known."""
        return (self.used or 0) / self.limit if self.limit else 0.0


def quota_limits(
    defaults: QuotaSettings, cache: CacheSettings, own: ProjectQuotas
) -> dict[str, int | None]:
    """The limits of a project by the names of the quotas. None: there is none."""
    limits: dict[str, int | None] = {}
    for name in QuotaSettings.model_fields:
        limit = getattr(own, name)
        limits[name] = (getattr(defaults, name) if limit is None else limit) or None
    limits["cache_bytes"] = own.cache_bytes or cache.project_bytes
    return limits


async def quota_uses(
    on: Pool | Connection,
    redis: Redis | None,
    project: UUID,
    limits: Mapping[str, int | None],
    *,
    counts_unlimited: bool,
) -> list[QuotaUse]:
    """The quotas that limit the project, and those whose use is known. `redis` None, or one that
    does not answer: without what only it counts. `counts_unlimited`: also files, batches, code and
    tokens without a limit, which reads more rows."""
    used = await _stored_uses(on, project, limits, counts_unlimited=counts_unlimited)
    if redis is not None:
        with suppress(*REDIS_ERRORS):
            known = {name: limit for name, limit in limits.items() if limit}
            used |= await read_counted_uses(redis, project, known)
    return [
        QuotaUse(name, used.get(name), limit)
        for name, limit in limits.items()
        if limit is not None or name in used
    ]


async def _stored_uses(
    on: Pool | Connection,
    project: UUID,
    limits: Mapping[str, int | None],
    *,
    counts_unlimited: bool,
) -> dict[str, int]:
    """What the database counts, by the names of the quotas."""

    def is_counted(*names: str) -> bool:
        return counts_unlimited or any(limits[name] for name in names)

    values = {"project": project}
    [state] = await fetch_idempotent(on, QUOTA_STATE, values)
    used = {name: getattr(state, name) for name in ("running", "queued", "conversations")}
    if is_counted("batches"):
        [used["batches"]] = await fetch_idempotent(on, COUNTED_BATCHES, values)
    if is_counted("files", "file_bytes"):
        [files] = await fetch_idempotent(on, STORED_FILES, {**values, "id": UUID(int=0)})
        used |= {"files": files.count, "file_bytes": files.bytes}
    if is_counted("code_sessions", "code_memory_bytes"):
        [code] = await fetch_idempotent(on, CODE_USE, {**values, "id": UUID(int=0)})
        used |= {"code_sessions": code.sessions, "code_memory_bytes": code.memory}
    if is_counted("code_seconds_per_day"):
        [spent] = await fetch_idempotent(on, USED_CPU, values)
        used["code_seconds_per_day"] = spent // 1000
    for name, since in _token_periods().items():
        if is_counted(name):
            asked: dict[str, object] = {"project": project, "since": since}
            [used[name]] = await fetch_idempotent(on, USED_TOKENS, asked)
    return used


def _token_periods() -> dict[str, datetime]:
    """When the periods of the budgets of tokens have begun, in UTC."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return {"tokens_per_day": today, "tokens_per_month": today.replace(day=1)}


COMPARED = (
    *("requests_per_minute", "tokens_per_minute", "tokens_per_day", "tokens_per_month"),
    *("running", "stored_bytes"),
)
"""The quotas whose use is cheap to read of many projects."""
_OPEN = 20_000
"""Open responses that are counted by project at most."""
_MEASURED = ("requests", "tokens", "stored")


async def compared_uses(
    pool: Pool, redis: Redis, projects: Mapping[UUID, Mapping[str, int | None]]
) -> dict[UUID, list[QuotaUse]]:
    """What each project uses of the quotas COMPARED that limit it. `projects`: their limits.
    Without Redis only what the database counts is known."""
    open_counts = await fetch_idempotent(pool, OPEN_BY_PROJECT, {"max_rows": _OPEN})
    running = {row.project_id: row.counted for row in open_counts}
    counted: dict[UUID, dict[str, int]] = {}
    with suppress(*REDIS_ERRORS):
        counted = await _counted_of_many(redis, projects)
    uses: dict[UUID, list[QuotaUse]] = {}
    for project, limits in projects.items():
        used = counted.get(project, {}) | {"running": running.get(project, 0)}
        uses[project] = [
            QuotaUse(name, used.get(name), limits[name]) for name in COMPARED if limits[name]
        ]
    return uses


async def _counted_of_many(
    redis: Redis, projects: Mapping[UUID, Mapping[str, int | None]]
) -> dict[UUID, dict[str, int]]:
    """The same of what Redis counts. Raises what REDIS_ERRORS names."""
    period = Period.at(time.time())
    budgets = {"tokens_per_day": f"day:{period.day}", "tokens_per_month": f"month:{period.month}"}
    limited = {
        project: limits
        for project, limits in projects.items()
        if any(limits[name] for name in COMPARED if name != "running")
    }
    pipeline = redis.pipeline(transaction=False)
    pipeline.time()
    for project in limited:
        pipeline.hmget(quota_keys(project)[0], [*_MEASURED, *budgets.values()])
    clock, *answers = await pipeline.execute()
    now, found = clock[0] * 1000 + clock[1] // 1000, {}
    for (project, limits), (requests, tokens, stored, *sums) in zip(
        limited.items(), answers, strict=True
    ):
        used = _rates({"requests": requests, "tokens": tokens}, limits, now)
        used |= {"stored_bytes": int(stored or 0)}
        used |= {name: int(each) for name, each in zip(budgets, sums, strict=True) if each}
        found[project] = used
    return found


_RATES = {"requests": "requests_per_minute", "tokens": "tokens_per_minute"}


async def read_counted_uses(
    redis: Redis, project: UUID, limits: Mapping[str, int]
) -> dict[str, int]:
    """Name of a quota -> what is used of it, for those that have a limit, and for the bytes of
    cached answers. Raises what REDIS_ERRORS names."""
    numbers_key, _, _, connections_key = quota_keys(project)
    pipeline = redis.pipeline(transaction=False)
    pipeline.time()
    pipeline.hgetall(numbers_key)
    pipeline.hgetall(connections_key)
    pipeline.hget(cache_share_keys(project)[1], "total")
    clock, numbers, connections, cached = await pipeline.execute()
    now = clock[0] * 1000 + clock[1] // 1000
    uses = {"cache_bytes": int(cached or 0), "stored_bytes": int(numbers.get(b"stored", 0))}
    drained = {name: numbers.get(name.encode()) for name in _RATES}
    uses |= _rates(drained, limits, now)
    for kind in CONNECTIONS:
        uses[kind.name] = sum(_open(connections, kind.name, now))
    return {name: use for name, use in uses.items() if name == "cache_bytes" or limits.get(name)}


def _rates(
    drained: Mapping[str, bytes | None], limits: Mapping[str, int | None], now: int
) -> dict[str, int]:
    """What is used of the rates. `drained`: when each is unused again, in milliseconds as `now`."""
    return {
        quota: math.ceil(
            max(0.0, float(drained[name] or 0) - now) / (WINDOW * 1000) * (limits.get(quota) or 0)
        )
        for name, quota in _RATES.items()
    }


def _open(connections: Mapping[bytes, bytes], kind: str, now: int) -> Iterator[int]:
    """What each web process has open, as far as it has reported it lately."""
    for name, value in connections.items():
        count, _, expires = value.decode().partition(":")
        if name.decode().startswith(f"{kind}:") and int(expires) >= now:
            yield int(count)
