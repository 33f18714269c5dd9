"""A process of a simulated fleet that is killed: it has only a lease. It reads the addresses of
PostgreSQL and Redis, a line each, and prints its id when it has the lease."""

import asyncio
import sys

from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.ownership.lease import Lease


async def _live(settings: Settings) -> None:
    lease = Lease(settings, "worker")
    lease.register()
    print(lease.id, flush=True)
    await lease.tick()


if __name__ == "__main__":
    database, redis = (sys.stdin.readline().strip() for _ in range(2))
    upstream = UpstreamSettings(base_url="http://127.0.0.1:1/v1")
    asyncio.run(_live(Settings(database_url=database, redis_url=redis, upstream=upstream)))
