"""The injector does what it says: a statement that happened looks, to whoever sent it, exactly like one that did not."""

import random

import psycopg

from tests.support.chaos.injector import Injector
from tests.support.stack import Databases


async def test_what_was_done_and_what_was_lost_look_the_same(database_server: Databases) -> None:
    dsn = await database_server.create_copy()
    injector = Injector(dsn, random.Random(3))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as direct:
        await direct.execute("CREATE TABLE heard (number int PRIMARY KEY)")
        try:
            injector.rate = 1
            for number in range(40):
                assert await _is_refused(injector.url(dsn), number)
            injector.rate = 0
            assert not await _is_refused(injector.url(dsn), 40)
            cursor = await direct.execute("SELECT count(*) FROM heard")
            assert await cursor.fetchone() == (injector.answers_lost + 1,)
            assert injector.answers_lost + injector.requests_lost == 40
            assert 0 < injector.requests_lost < injector.answers_lost
        finally:
            await injector.close()


async def _is_refused(url: str, number: int) -> bool:
    """Whether the INSERT seems to have failed with its connection."""
    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("INSERT INTO heard VALUES (%s)", [number])
    except psycopg.OperationalError:
        return True
    return False
