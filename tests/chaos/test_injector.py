"""The injector loses requests and replies, and the sender cannot see which of the two."""

import random

import psycopg

from tests.support.chaos.injector import Injector
from tests.support.stack import Databases


async def test_a_lost_reply_looks_like_a_lost_request(database_server: Databases) -> None:
    dsn = await database_server.create_copy()
    injector = Injector(dsn, random.Random(3))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as direct:
        await direct.execute("CREATE TABLE received (number int PRIMARY KEY)")
        try:
            injector.rate = 1
            for number in range(40):
                assert await _is_refused(injector.url(dsn), number)
            injector.rate = 0
            assert not await _is_refused(injector.url(dsn), 40)
            cursor = await direct.execute("SELECT count(*) FROM received")
            assert await cursor.fetchone() == (injector.answers_lost + 1,)
            assert injector.answers_lost + injector.requests_lost == 40
            assert 0 < injector.requests_lost < injector.answers_lost
        finally:
            await injector.close()


async def _is_refused(url: str, number: int) -> bool:
    """Returns whether the INSERT failed with its connection."""
    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("INSERT INTO received VALUES (%s)", [number])
    except psycopg.OperationalError:
        return True
    return False
