"""What an API key may do, and when a change of it reaches the processes."""

import time
from datetime import timedelta

from models import keys
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.support.api import Api, until
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack


def _api(stack: Stack, *scopes: Scope, lifetime: timedelta | None = None) -> Api:
    grant = KeyGrant(frozenset(scopes), lifetime=lifetime)
    return stack.api(key=keys.create(stack.dsn, "scopes", grant=grant))


async def test_a_key_that_only_reads_changes_nothing(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    writer, reader = (_api(shared_stack, scope) for scope in (Scope.RESPONSES, Scope.READ))
    response = await writer.create(fake.script(reply("x")))
    path = f"/responses/{response['id']}"
    assert (await reader.call("GET", path)).body["output_text"] == "x"
    assert (await reader.call("GET", f"{path}/input_items")).status == 200
    assert (await reader.call("GET", "/models")).status == 200
    for method, suffix in (("DELETE", path), ("POST", f"{path}/cancel"), ("POST", "/responses")):
        refused = await reader.call(method, suffix, {} if method == "POST" else None)
        assert (refused.status, refused.error["code"]) == (403, "missing_scope")
        assert "Missing scopes: responses." in refused.error["message"]
    assert (await writer.call("GET", path)).status == 200


async def test_an_admins_key_reads_nothing_of_a_project(shared_stack: Stack) -> None:
    admin = _api(shared_stack, Scope.ADMIN)
    refused = await admin.call("GET", "/models")
    assert (refused.status, refused.error["code"]) == (403, "missing_scope")


async def test_a_key_expires_although_it_is_cached(shared_stack: Stack) -> None:
    api = _api(shared_stack, Scope.READ, lifetime=timedelta(seconds=1.5))
    begun = time.monotonic()
    assert (await api.call("GET", "/models")).status == 200

    async def is_refused() -> bool:
        return (await api.call("GET", "/models")).status == 401

    await until(is_refused, 10)
    assert 1.4 < time.monotonic() - begun < 3.5


async def test_a_revoked_key_is_refused_by_all_processes_within_a_second(
    shared_stack: Stack,
) -> None:
    """They cached a key for five seconds."""
    key = keys.create(shared_stack.dsn, "revoked at once")
    apis = [shared_stack.api(web, key=key) for web in range(len(shared_stack.webs))]
    for api in apis:
        assert (await api.call("GET", "/models")).status == 200
    await shared_stack.value(
        "UPDATE api_keys SET revoked_at = now() WHERE hash = %s RETURNING 1", keys.hash_key(key)
    )
    begun = time.monotonic()

    async def are_refused() -> bool:
        return [(await api.call("GET", "/models")).status for api in apis] == [401] * len(apis)

    await until(are_refused, 10)
    assert time.monotonic() - begun < 2.5, "a heartbeat is half a second"
