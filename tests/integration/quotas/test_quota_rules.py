"""The rules of quotas in Redis and in a process that judges alone are the same."""

import random
from collections.abc import Iterator
from uuid import UUID

import pytest

from features.quotas.local import LocalQuotas
from models.ids import new_uuid
from models.projects.quotas import Limits, Quota
from models.redis.quota_counters import Demand, Period, QuotaCounters
from tests.support.stack import Stack

PERIOD = Period.at(0)
LIMITS = [
    Limits(requests_per_minute=7),
    Limits(tokens_per_minute=10_000),
    Limits(running=3),
    Limits(queued=3, stored_bytes=5_000),
    Limits(conversations=2, requests_per_minute=30),
    Limits(tokens_per_minute=20_000, running=6, open_streams=2, open_sockets=1),
]


def _demand(dice: random.Random) -> Demand:
    kind = dice.randrange(4)
    if kind == 0:
        return Demand(bytes=dice.randrange(2_000), conversations=1)
    if kind == 1:
        return Demand(tokens=dice.randrange(3_000), open_streams=1)
    if kind == 2:
        return Demand(requests=0, open_sockets=1)
    return Demand(response=new_uuid(), tokens=dice.randrange(3_000), bytes=dice.randrange(1_000))


@pytest.mark.parametrize("limits", LIMITS, ids=lambda limits: next(_names(limits)))
async def test_a_process_alone_refuses_what_redis_would_refuse(
    shared_stack: Stack, limits: Limits
) -> None:
    dice, project = random.Random(1), new_uuid()
    redis = shared_stack.redis()
    counters, local = QuotaCounters(redis, new_uuid()), LocalQuotas()
    own: dict[Quota, int] = {}
    admitted: list[UUID] = []
    try:
        for _ in range(60):
            demand = _demand(dice)
            decision = await counters.admit(project, limits, demand, own, PERIOD, is_corrected=True)
            assert decision is not None
            alone = local.decide(project, limits, demand, own, 1)
            assert alone.refused == decision.refused
            assert alone.wait == pytest.approx(decision.wait, abs=2)
            assert alone.requests == pytest.approx(decision.requests, abs=2)
            if decision.refused is None:
                own |= {kind: own.get(kind, 0) + 1 for kind in _opened(demand)}
                admitted += [] if demand.response is None else [demand.response]
            if admitted and dice.random() < 0.3:
                ended = admitted.pop(dice.randrange(len(admitted)))
                await counters.settle(project, limits, ended, None, PERIOD)
                local.release(project, ended)
    finally:
        await redis.aclose()


def _opened(demand: Demand) -> list[Quota]:
    kinds = (Quota.open_streams, Quota.open_sockets)
    return [kind for kind in kinds if getattr(demand, kind.name)]


def _names(limits: Limits) -> Iterator[str]:
    return (name for name in Limits.__slots__ if getattr(limits, name))
