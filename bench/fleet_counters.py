"""What the servers of a fleet count: transactions, flushes and bytes of the WAL, multixacts, and
commands of Redis; and how soon a death is noticed."""

import asyncio
import sys
import time
from dataclasses import dataclass, fields
from typing import Any

import psycopg
from redis.asyncio import Redis

_COUNTS = """
    SELECT (SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database),
           (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'),
           pg_current_wal_lsn() - '0/0'::pg_lsn,
           (SELECT CAST(CAST(next_multixact_id AS text) AS bigint) FROM pg_control_checkpoint())
"""
_DEATHS = 5
"""Processes that are killed, one after the other."""


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """What was counted since the servers have started."""

    transactions: float
    flushes: float
    """of the WAL"""
    wal_bytes: float
    multixacts: float
    commands: float
    """of Redis"""

    def since(self, before: "ServerCounts", seconds: float) -> "ServerCounts":
        """Of each second between two counts."""
        return ServerCounts(
            *(
                (getattr(self, each.name) - getattr(before, each.name)) / seconds
                for each in fields(self)
            )
        )


async def count_servers(database: psycopg.AsyncConnection[Any], redis: Redis) -> ServerCounts:
    """The counts of now. Sessions report theirs about once a second."""
    await database.execute("CHECKPOINT")
    row = await (await database.execute(_COUNTS.encode())).fetchone()
    assert row is not None
    commands = (await redis.info("stats"))["total_commands_processed"]
    transactions, flushes, wal_bytes, multixacts = (float(each or 0) for each in row)
    return ServerCounts(transactions, flushes, wal_bytes, multixacts, float(commands))


async def seconds_until_noticed(
    servers: tuple[str, str], database: psycopg.AsyncConnection[Any]
) -> list[float]:
    """How long it takes, from `kill -9` of a process, until it is declared dead. `servers`: the
    addresses of PostgreSQL and Redis."""
    times: list[float] = []
    for _ in range(_DEATHS):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "bench.fleet_victim"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdin.write("".join(f"{each}\n" for each in servers).encode())
        victim = (await process.stdout.readline()).decode().strip()
        await asyncio.sleep(2)
        process.kill()
        killed = time.monotonic()
        while not await _is_dead(database, victim):  # noqa: ASYNC110 - other processes declare it
            await asyncio.sleep(0.02)
        times.append(time.monotonic() - killed)
        await process.wait()
    return times


async def _is_dead(database: psycopg.AsyncConnection[Any], process: str) -> bool:
    query = b"SELECT 1 FROM workers WHERE id = %s AND dead"
    return await (await database.execute(query, [process])).fetchone() is not None
