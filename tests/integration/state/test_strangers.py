"""Another project's id is the same 404 as an id that never was (I11)."""

import pytest

from models import keys
from models.ids import new_uuid, response_id
from tests.support.api import Api, until
from tests.support.fake_upstream import FakeUpstream, hang, reply, text
from tests.support.stack import Stack


@pytest.fixture
def stranger(shared_stack: Stack) -> Api:
    """A key of another project."""
    return shared_stack.api(key=keys.create(shared_stack.dsn, "strangers"))


async def test_a_stranger_finds_nothing(api: Api, stranger: Api, fake: FakeUpstream) -> None:
    mine = await api.wait_for_end(await api.create_background(fake.script(reply("private"))))
    unknown = response_id(new_uuid())
    for method, rest in (
        ("GET", ""),
        ("GET", "?stream=true"),
        ("POST", "/cancel"),
        ("DELETE", ""),
        ("GET", "/input_items"),
    ):
        answer = await stranger.call(method, f"/responses/{mine['id']}{rest}")
        nothing = await stranger.call(method, f"/responses/{unknown}{rest}")
        assert answer.status == nothing.status == 404
        assert answer.raw.replace(mine["id"].encode(), b"") == nothing.raw.replace(
            unknown.encode(), b""
        )
    assert await api.get(mine["id"]) == mine


async def test_a_stranger_cannot_continue_a_response(
    api: Api, stranger: Api, fake: FakeUpstream
) -> None:
    mine = await api.create(fake.script(reply("private")))
    model = fake.script(reply("never"))
    refused = await stranger.call(
        "POST", "/responses", {"model": model, "input": "x", "previous_response_id": mine["id"]}
    )
    assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")
    assert fake.requests_for(model) == []


async def test_a_stranger_cannot_stop_a_running_response(
    api: Api, stranger: Api, fake: FakeUpstream
) -> None:
    model = fake.script([text("x"), hang()])
    async with api.post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        for method, rest in (("POST", "/cancel"), ("DELETE", "")):
            assert (
                await stranger.call(method, f"/responses/{stream.response_id}{rest}")
            ).status == 404
        assert (await api.get(stream.response_id))["status"] == "in_progress"
        assert fake.requests_for(model)[0].is_open
        await api.cancel(stream.response_id)


async def test_a_project_of_its_own_works_like_any_other(stranger: Api, fake: FakeUpstream) -> None:
    response = await stranger.create(fake.script(reply("theirs")))
    assert (await stranger.get(response["id"]))["output_text"] == "theirs"


async def test_a_revoked_key_opens_nothing(shared_stack: Stack, fake: FakeUpstream) -> None:
    key = keys.create(shared_stack.dsn, "leavers")
    response = await shared_stack.api(key=key).create(fake.script(reply("x")))
    await shared_stack.value(
        "UPDATE api_keys SET revoked_at = now() WHERE hash = %s RETURNING 1", keys.hash_key(key)
    )

    async def is_refused() -> bool:
        return (
            await shared_stack.api(key=key).call("GET", f"/responses/{response['id']}")
        ).status == 401

    # a web process believes a key it has just seen for a few seconds more
    await until(is_refused, 10)
