"""Postgres refuses to store a new response: the client gets a 503, and its web process stays alive.

A trigger with the SQLSTATE of a full disk (53100) takes the place of a full disk.
"""

from datetime import timedelta

import psycopg

from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import SHORT_LEASES

_REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON responses EXECUTE FUNCTION refuse();
"""


async def test_a_full_disk_refuses_creates_and_no_web_process_is_declared_dead(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        private_stack(settings=SHORT_LEASES) as own_stack,
        await psycopg.AsyncConnection.connect(own_stack.dsn, autocommit=True) as connection,
    ):
        api, model = own_stack.api(), fake.script(reply("stored"))
        body = {"model": model, "input": "x", "background": True}
        await connection.execute(_REFUSE)
        refused = await api.call("POST", "/responses", body)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")

        lease = "SELECT expires_at FROM workers WHERE kind = 'web' AND NOT dead"
        past_the_lease = await own_stack.value(lease) + timedelta(seconds=6)

        async def is_renewed() -> bool:
            renewed_until = await own_stack.value(lease)
            assert renewed_until is not None, "the web process was declared dead"
            return bool(renewed_until > past_the_lease)

        await until(is_renewed, 20)
        await connection.execute("DROP TRIGGER refuse ON responses")
        assert (await api.wait_for_end(await api.create_background(model)))["status"] == "completed"
