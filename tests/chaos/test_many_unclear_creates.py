"""Many creates become unclear at once while inserts are slow: their web process stays alive.

A trigger makes each insert take as long as on an overloaded server. A proxy loses the replies.
"""

import asyncio
from http import HTTPStatus

import psycopg
import pytest

from tests.conftest import PrivateStack
from tests.support.api import HttpResponse, until
from tests.support.chaos.tracebacks import POSTGRES_TRACEBACKS
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import SHORT_LEASES

pytestmark = pytest.mark.long

_CREATES, _UNCLEAR = 350, 100
"""All of them wait for the pool's connections; so would a voiding that used the pool."""
_SLOW_INSERTS = """
    CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END $$;
    CREATE TRIGGER wait BEFORE INSERT ON responses FOR EACH STATEMENT EXECUTE FUNCTION wait();
"""
_INSERT = b"model, parameters, previous_response_id"


async def test_slow_voiding_of_many_unclear_creates_delays_no_heartbeat_and_none_of_them_runs(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        private_stack(
            settings=SHORT_LEASES | {"BACKBURNER_WEB__POOL_SIZE": "16"},
            proxied=True,
            allowed_tracebacks=POSTGRES_TRACEBACKS,
        ) as own_stack,
        await psycopg.AsyncConnection.connect(own_stack.dsn, autocommit=True) as connection,
    ):
        api, [web] = own_stack.api(), own_stack.webs
        models = [fake.script(reply("once")) for _ in range(_CREATES)]
        await connection.execute(_SLOW_INSERTS)
        for _ in range(2 * _UNCLEAR):
            web.proxies.postgres.hold_answer(_INSERT).lose()

        async def create(model: str) -> HttpResponse:
            body = {"model": model, "input": "x", "background": True}
            # With a key of its client, each create has a statement of its own.
            key = {"idempotency-key": model}
            return await api.call("POST", "/responses", body, headers=key)

        answers = await asyncio.gather(*map(create, models))
        # On a slow machine the others are refused too: they wait too long for a connection.
        assert {503} <= {answer.status for answer in answers} <= {200, 503}
        not_ended = "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"

        async def all_ended() -> bool:
            return bool(await own_stack.value(not_ended) == 0)

        await until(all_ended, 60)
        assert web.running()
        assert await own_stack.value("SELECT count(*) FROM workers WHERE dead") == 0
        await connection.execute("DROP TRIGGER wait ON responses")
        for model, answer in zip(models, answers, strict=True):
            assert len(fake.requests_for(model)) == (answer.status == HTTPStatus.OK)
