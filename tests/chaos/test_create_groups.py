"""Creates that are stored by one statement: none is lost, mixed up or held up by another.

The replies to as many statements are held as may be on their way at a time. The creates that come
meanwhile wait, and are stored together once one of these replies is released.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from tests.support import keys
from tests.support.api import Api, HttpResponse
from tests.support.chaos.interception import HeldAnswer
from tests.support.chaos.lost_replies import both_kinds, lose_reply
from tests.support.chaos.tracebacks import POSTGRES_TRACEBACKS
from tests.support.fake_upstream import FakeUpstream, hang, reply, text
from tests.support.stack import RUNNING_STACKS, Databases, Stack, SuiteSettings, stack

_INSERT = b"INSERT INTO responses"
_MAX_STATEMENTS = 4
"""Statements of grouped creates that are on their way at a time (models/ownership/grouping.py)."""
_STORED_TOGETHER = """
    SELECT count(*) FROM event_log WHERE xmin::text = (
        SELECT e.xmin::text FROM event_log e JOIN responses r ON r.id = e.response_id
        WHERE r.model = %s AND e.first_number = 0 ORDER BY r.id DESC LIMIT 1)
"""
"""How many responses the transaction stored that stored the newest one of a model."""
_REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = 'check_violation'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON responses
    FOR EACH ROW WHEN (NEW.model = '{model}') EXECUTE FUNCTION refuse();
"""


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    async with stack(
        tmp_path_factory.mktemp("groups"),
        database_server,
        suite_settings,
        fake,
        proxied=True,
        allowed_tracebacks=POSTGRES_TRACEBACKS,
    ) as running:
        yield running
    RUNNING_STACKS.remove(running)


class _Held:
    """Creates whose replies are held: no statement for others begins."""

    def __init__(self) -> None:
        self.answers: list[HeldAnswer] = []
        self.creates: list[asyncio.Task[HttpResponse]] = []

    def release_one(self) -> None:
        """Lets the creates that wait be stored."""
        self.answers[0].release()


@asynccontextmanager
async def _held_inserts(own_stack: Stack, fake: FakeUpstream) -> AsyncIterator[_Held]:
    """Holds the replies; releases them and waits for their creates at the end."""
    held = _Held()
    for _ in range(_MAX_STATEMENTS):
        answer = own_stack.webs[0].proxies.postgres.hold_answer(_INSERT)
        held.answers.append(answer)
        held.creates.append(_post(own_stack.api(), fake.script(reply("held"))))
        await answer.answered.wait()
    try:
        yield held
    finally:
        for answer in held.answers:
            answer.release()
    for create in held.creates:
        assert (await create).status == 200


async def _until_they_wait(api: Api) -> None:
    """Returns when the web process has received the creates that were sent before."""
    for _ in range(5):
        await api.call("GET", "/models")


def _post(api: Api, model: str, **body: object) -> asyncio.Task[HttpResponse]:
    body = {"model": model, "input": "Hello.", "background": True, **body}
    return asyncio.create_task(api.call("POST", "/responses", body))


async def _assert_run_once(own_stack: Stack, fake: FakeUpstream, model: str) -> None:
    assert len(fake.requests_for(model)) == 1
    assert await own_stack.value("SELECT count(*) FROM responses WHERE model = %s", model) == 1


@both_kinds
async def test_a_group_with_a_lost_reply_is_answered_200_and_each_create_runs_once(
    own_stack: Stack, fake: FakeUpstream, kind: str
) -> None:
    api, web = own_stack.api(), own_stack.webs[0]
    models = [fake.script(reply(f"once {number}")) for number in range(6)]
    async with _held_inserts(own_stack, fake) as held:
        unclear_before = web.log.read_text().count("create_outcome_unknown")
        lose_reply(web.proxies.postgres, _INSERT, kind)
        # The SDKs mark their requests: each stores a key as well.
        later = [
            asyncio.create_task(
                api.call(
                    "POST",
                    "/responses",
                    {"model": model, "input": "Hello.", "background": True},
                    headers={"x-stainless-retry-count": "0"},
                )
            )
            for model in models
        ]
        await _until_they_wait(api)
        held.release_one()
        answers = await asyncio.gather(*later)
    unclear = web.log.read_text().count("create_outcome_unknown") - unclear_before
    assert unclear == 1
    assert await own_stack.value(_STORED_TOGETHER, models[-1]) > 1
    for number, answer in enumerate(answers):
        assert answer.status == 200, answer.raw
        assert answer.body["model"] == models[number]
        ended = await api.wait_for_end(answer.body["id"])
        assert ended["output_text"] == f"once {number}"
        await _assert_run_once(own_stack, fake, models[number])


async def test_projects_in_one_group_are_not_mixed(own_stack: Stack, fake: FakeUpstream) -> None:
    apis = [own_stack.api(key=keys.create(own_stack.dsn, f"group-{n}")) for n in range(2)]
    for api in apis:
        await api.call("GET", "/models")  # the web process caches the new key
    model = fake.script(*(reply("done") for _ in range(6)))
    async with _held_inserts(own_stack, fake) as held:
        inputs = [(n % 2, f"of project {n % 2}, create {n}") for n in range(6)]
        posts = [_post(apis[owner], model, input=text) for owner, text in inputs]
        await _until_they_wait(apis[0])
        held.release_one()
        answers = await asyncio.gather(*posts)
    assert await own_stack.value(_STORED_TOGETHER, model) > 1
    for (owner, sent), answer in zip(inputs, answers, strict=True):
        path = f"/responses/{answer.body['id']}"
        assert (await apis[1 - owner].call("GET", path)).status == 404
        items = (await apis[owner].call("GET", f"{path}/input_items")).body["data"]
        assert [item["content"][0]["text"] for item in items] == [sent]
        await apis[owner].wait_for_end(answer.body["id"])


async def test_a_create_that_postgres_refuses_fails_alone(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    api = own_stack.api()
    models = [fake.script(reply("fine")) for _ in range(5)]
    async with await psycopg.AsyncConnection.connect(own_stack.dsn, autocommit=True) as connection:
        await connection.execute(_REFUSE.format(model=models[2]))
        async with _held_inserts(own_stack, fake) as held:
            posts = [_post(api, model) for model in models]
            await _until_they_wait(api)
            held.release_one()
            answers = await asyncio.gather(*posts)
        await connection.execute("DROP TRIGGER refuse ON responses")
    assert [answer.status for answer in answers] == [200, 200, 500, 200, 200]
    for number in (0, 1, 3, 4):
        assert (await api.wait_for_end(answers[number].body["id"]))["output_text"] == "fine"
        await _assert_run_once(own_stack, fake, models[number])
    assert fake.requests_for(models[2]) == []


async def test_a_create_that_another_request_can_refuse_waits_for_no_group(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    """Its conversation is locked, its key is held, or it is large: it has its own statement."""
    api = own_stack.api()
    busy = fake.script([text("half"), hang()])
    conversation = (await api.call("POST", "/conversations", {})).body["id"]
    open_id = await api.create_background(busy, conversation=conversation)
    async with _held_inserts(own_stack, fake) as held:
        locked, large = await asyncio.gather(
            _post(api, busy, conversation=conversation),
            _post(api, fake.script(reply("large")), input="x" * 300_000),
        )
        assert (locked.status, locked.error["code"]) == (400, "conversation_locked")
        assert large.status == 200
        model, key = fake.script(reply("keyed")), {"idempotency-key": "in a group"}
        body = {"model": model, "input": "x", "background": True}
        keyed = [api.call("POST", "/responses", body, headers=key) for _ in range(3)]
        ids = {answer.body["id"] for answer in await asyncio.gather(*keyed)}
        assert len(ids) == 1
        assert not any(create.done() for create in held.creates)
    for response_id in (*ids, large.body["id"]):
        assert (await api.wait_for_end(response_id))["status"] == "completed"
    assert (await api.cancel(open_id)).status == 200
