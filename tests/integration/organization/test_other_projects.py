"""A project cannot see another project's responses: each is the same 404 as an unknown id (I11)."""

import pytest

from models.ids import new_uuid, response_id
from tests.support import keys
from tests.support.api import Api, until
from tests.support.fake_upstream import FakeUpstream, hang, reply, text
from tests.support.stack import Stack


@pytest.fixture
def other_project_api(shared_stack: Stack) -> Api:
    """A client with a key of another project."""
    return shared_stack.api(key=keys.create(shared_stack.dsn, "other project"))


async def test_another_projects_response_looks_like_an_unknown_id(
    api: Api, other_project_api: Api, fake: FakeUpstream
) -> None:
    response = await api.wait_for_end(await api.create_background(fake.script(reply("private"))))
    unknown = response_id(new_uuid())
    for method, suffix in (
        ("GET", ""),
        ("GET", "?stream=true"),
        ("POST", "/cancel"),
        ("DELETE", ""),
        ("GET", "/input_items"),
    ):
        answer = await other_project_api.call(method, f"/responses/{response['id']}{suffix}")
        unknown_answer = await other_project_api.call(method, f"/responses/{unknown}{suffix}")
        assert answer.status == unknown_answer.status == 404
        assert answer.raw.replace(response["id"].encode(), b"") == unknown_answer.raw.replace(
            unknown.encode(), b""
        )
    assert await api.get(response["id"]) == response


async def test_another_project_cannot_continue_a_response(
    api: Api, other_project_api: Api, fake: FakeUpstream
) -> None:
    response = await api.create(fake.script(reply("private")))
    model = fake.script(reply("never"))
    refused = await other_project_api.call(
        "POST", "/responses", {"model": model, "input": "x", "previous_response_id": response["id"]}
    )
    assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")
    assert fake.requests_for(model) == []


async def test_another_project_cannot_stop_a_running_response(
    api: Api, other_project_api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([text("x"), hang()])
    async with api.post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        for method, suffix in (("POST", "/cancel"), ("DELETE", "")):
            assert (
                await other_project_api.call(method, f"/responses/{stream.response_id}{suffix}")
            ).status == 404
        assert (await api.get(stream.response_id))["status"] == "in_progress"
        assert fake.requests_for(model)[0].is_open
        await api.cancel(stream.response_id)


async def test_each_project_can_use_its_own_responses(
    other_project_api: Api, fake: FakeUpstream
) -> None:
    response = await other_project_api.create(fake.script(reply("theirs")))
    assert (await other_project_api.get(response["id"]))["output_text"] == "theirs"


async def test_a_revoked_key_is_refused(shared_stack: Stack, fake: FakeUpstream) -> None:
    key = keys.create(shared_stack.dsn, "revoked")
    response = await shared_stack.api(key=key).create(fake.script(reply("x")))
    await shared_stack.value(
        "UPDATE api_keys SET revoked_at = now() WHERE hash = %s RETURNING 1", keys.hash_key(key)
    )

    async def is_refused() -> bool:
        return (
            await shared_stack.api(key=key).call("GET", f"/responses/{response['id']}")
        ).status == 401

    # A web process caches a valid key for a few seconds.
    await until(is_refused, 10)
