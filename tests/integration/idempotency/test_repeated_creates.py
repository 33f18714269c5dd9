"""A create that its client sends again makes nothing twice: every create of the official client
that this server has, and those of its own routes (responses besides: test_idempotency.py)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import openai
import orjson
import psycopg
import pytest

from models.db.sync import set_search_path
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.support import keys
from tests.support.api import until
from tests.support.chaos.proxy import Proxy
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack

CONTENT = b"The tides of the sea are made by the moon."


@dataclass(slots=True)
class Made:
    """What exists before a create, in a project of its own."""

    stack: Stack
    client: openai.AsyncOpenAI
    """directly before the server"""
    name: str
    """of the project"""
    model: str
    file: str = ""
    lines: str = ""
    """a file of the lines of a batch"""
    upload: str = ""
    part: str = ""
    complete: str = ""
    """an upload that has all its parts"""
    store: str = ""
    conversation: str = ""
    endpoint: str = ""
    project: str = ""
    account: str = ""

    async def count(self, query: str) -> int:
        """The number of rows; `query` behind FROM. `%s` is the project's name."""
        found = await self.stack.value(f"SELECT count(*) FROM {query}", self.name)
        return int(found)


@dataclass(frozen=True, slots=True)
class Create:
    """A create, and how many objects there are."""

    call: Callable[[openai.AsyncOpenAI, Made, dict[str, str]], Awaitable[Any]]
    """with additional headers"""
    rows: str
    """behind FROM"""
    keyed: bool = True
    """The answer to a repeat is the same one."""


_OWN = "WHERE project_id = (SELECT id FROM projects WHERE name = %s)"
_CHILD = "project_id = (SELECT id FROM projects WHERE name = %s)"

CREATES = {
    "response": Create(
        lambda client, made, headers: client.responses.create(
            model=made.model, input="Hello.", background=True, extra_headers=headers
        ),
        f"responses {_OWN} AND background AND lane <> 3",
        keyed=False,
    ),
    "foreground response": Create(
        lambda client, made, headers: client.responses.create(
            model=made.model, input="Hello.", extra_headers=headers
        ),
        f"responses {_OWN} AND NOT background",
        keyed=False,
    ),
    "batch": Create(
        lambda client, made, headers: client.batches.create(
            input_file_id=made.lines,
            endpoint="/v1/responses",
            completion_window="24h",
            extra_headers=headers,
        ),
        f"batches {_OWN}",
        keyed=False,
    ),
    "file": Create(
        lambda client, _, headers: client.files.create(
            file=("b.txt", CONTENT), purpose="user_data", extra_headers=headers
        ),
        f"files {_OWN} AND filename = 'b.txt' AND delete_requested_at IS NULL",
    ),
    "upload": Create(
        lambda client, _, headers: client.uploads.create(
            bytes=9,
            filename="c.txt",
            mime_type="text/plain",
            purpose="user_data",
            extra_headers=headers,
        ),
        f"files {_OWN} AND filename = 'c.txt'",
    ),
    "part of an upload": Create(
        lambda client, made, headers: client.uploads.parts.create(
            made.upload, data=CONTENT, extra_headers=headers
        ),
        "file_parts p JOIN files f ON f.id = p.file_id"
        f" WHERE f.filename = 'd.txt' AND NOT p.abandoned AND {_CHILD}",
    ),
    "completion of an upload": Create(
        lambda client, made, headers: client.uploads.complete(
            made.complete, part_ids=[made.part], extra_headers=headers
        ),
        f"files {_OWN} AND filename = 'e.txt' AND completed_at IS NOT NULL",
    ),
    "vector store": Create(
        lambda client, _, headers: client.vector_stores.create(name="new", extra_headers=headers),
        f"vector_stores {_OWN} AND name = 'new'",
    ),
    "file of a vector store": Create(
        lambda client, made, headers: client.vector_stores.files.create(
            made.store, file_id=made.file, extra_headers=headers
        ),
        f"vector_store_files {_OWN}",
        keyed=False,
    ),
    "batch of files": Create(
        lambda client, made, headers: client.vector_stores.file_batches.create(
            made.store, file_ids=[made.file], extra_headers=headers
        ),
        f"vector_store_file_batches b JOIN vector_stores s ON s.id = b.store_id WHERE s.{_CHILD}",
        keyed=False,
    ),
    "conversation": Create(
        lambda client, _, headers: client.conversations.create(
            metadata={"a": "new"},
            items=[{"role": "user", "content": "Hi."}],
            extra_headers=headers,
        ),
        f'conversations {_OWN} AND metadata = \'{{"a": "new"}}\'',
    ),
    "items of a conversation": Create(
        lambda client, made, headers: client.conversations.items.create(
            made.conversation,
            items=[{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}],
            extra_headers=headers,
        ),
        "items i JOIN conversations c ON c.id = i.conversation_id"
        f" WHERE c.metadata = '{{}}' AND c.{_CHILD} AND i.payload::text LIKE '%%Two.%%'",
    ),
    "webhook endpoint": Create(
        lambda client, _, headers: _post(
            client, "/webhook_endpoints", headers, url="https://1.1.1.1/new"
        ),
        f"webhook_endpoints {_OWN} AND url LIKE '%%/new'",
    ),
    "webhook secret": Create(
        lambda client, made, headers: _post(
            client,
            f"/webhook_endpoints/{made.endpoint}/rotate_secret",
            headers,
            overlap_seconds=60,
        ),
        "audit WHERE action = 'webhook.rotate' AND project = %s",
    ),
    "project": Create(
        lambda client, made, headers: client.admin.organization.projects.create(
            name=f"{made.name} new", extra_headers=headers
        ),
        "projects WHERE name = %s || ' new'",
    ),
    "service account": Create(
        lambda client, made, headers: client.admin.organization.projects.service_accounts.create(
            made.project, name="new", extra_headers=headers
        ),
        "api_keys k JOIN service_accounts a ON a.id = k.service_account_id"
        f" WHERE a.name = 'new' AND a.{_CHILD}",
    ),
    "key of a service account": Create(
        lambda client, made, headers: (
            client.admin.organization.projects.service_accounts.api_keys.create(
                made.account, project_id=made.project, name="second", extra_headers=headers
            )
        ),
        f"api_keys {_OWN} AND name = 'second'",
    ),
    "key of an admin": Create(
        lambda client, made, headers: client.admin.organization.admin_api_keys.create(
            name=f"{made.name} admin", extra_headers=headers
        ),
        "api_keys WHERE name = %s || ' admin'",
    ),
}


async def _post(
    client: openai.AsyncOpenAI, path: str, headers: dict[str, str], **body: object
) -> Any:
    return await client.post(path, cast_to=object, body=body, options={"headers": headers})


@pytest.fixture
def answering(fake: FakeUpstream) -> str:
    """A model that answers each request."""
    return fake.script(*[reply("once")] * 12)


async def _prepare(stack: Stack, model: str, name: str) -> Made:
    client = stack.openai(key=await asyncio.to_thread(keys.create, stack.dsn, name))
    grant = KeyGrant(frozenset((Scope.ADMIN,)), "operations")
    client.admin_api_key = await asyncio.to_thread(keys.create, stack.dsn, "default", grant=grant)
    made = Made(stack, client, name, model)
    request = {"method": "POST", "url": "/v1/responses", "body": {"model": model, "input": "x"}}
    line = orjson.dumps({"custom_id": "1", **request})
    made.file = (await client.files.create(file=("a.txt", CONTENT), purpose="user_data")).id
    lines = ("a.jsonl", line)
    made.lines = (await client.files.create(file=lines, purpose="batch")).id
    uploads = [
        await client.uploads.create(
            bytes=len(CONTENT), filename=name, mime_type="text/plain", purpose="user_data"
        )
        for name in ("d.txt", "e.txt")
    ]
    made.upload, made.complete = [upload.id for upload in uploads]
    made.part = (await client.uploads.parts.create(made.complete, data=CONTENT)).id
    made.store = (await client.vector_stores.create(name="old")).id
    made.conversation = (await client.conversations.create()).id
    made.endpoint = (await _post(client, "/webhook_endpoints", {}, url="https://1.1.1.1/old"))["id"]
    projects = client.admin.organization.projects
    found = [one.id async for one in projects.list(limit=100) if one.name == name]
    made.project = found[0]
    account = await projects.service_accounts.create(made.project, name="old")
    made.account = account.id
    return made


def _through(proxy: Proxy, made: Made) -> openai.AsyncOpenAI:
    """The stock client with its retries, on connections of its own."""
    return openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{proxy.port}/v1",
        api_key=made.client.api_key,
        admin_api_key=made.client.admin_api_key,
    )


async def _of_all(
    check: Callable[[Create], Awaitable[object]], wanted: object, **creates: Create
) -> None:
    """Fails with the names of the creates whose result is another one, and these results."""
    names = list(creates or CREATES)
    results = await asyncio.gather(
        *(check(CREATES[name]) for name in names), return_exceptions=True
    )
    wrong = {name: result for name, result in zip(names, results, strict=True) if result != wanted}
    assert not wrong


async def test_the_stock_clients_retry_after_a_lost_reply_makes_one_of_each(
    tool_stack: Stack, answering: str
) -> None:
    made = await _prepare(tool_stack, answering, "lost replies")
    port = tool_stack.webs[0].port
    assert port is not None

    async def lose(create: Create) -> int:
        proxy = Proxy("127.0.0.1", port)
        before = await made.count(create.rows)
        try:
            async with _through(proxy, made) as client:
                proxy.cut_after(1)
                await create.call(client, made, {})
        finally:
            await proxy.close()
        return await made.count(create.rows) - before

    await _of_all(lose, 1)


async def test_equal_creates_with_one_key_at_the_same_time_make_one_object(
    tool_stack: Stack, answering: str
) -> None:
    made = await _prepare(tool_stack, answering, "equal keys")

    async def create_twice(create: Create) -> tuple[int, bool]:
        before = await made.count(create.rows)
        headers = {"Idempotency-Key": create.rows}
        calls = [create.call(made.client, made, headers) for _ in range(2)]
        first, second = map(_as_made, await asyncio.gather(*calls))
        third = _as_made(await create.call(made.client, made, headers))
        is_same = first == second == third if create.keyed else _id(first) == _id(third)
        return await made.count(create.rows) - before, is_same

    await _of_all(create_twice, (1, True))


async def test_equal_creates_without_a_key_stay_two_although_one_looks_like_a_retry(
    tool_stack: Stack, answering: str
) -> None:
    """The first one was answered, on a connection that stays open."""
    made = await _prepare(tool_stack, answering, "deliberate")

    async def create_twice(create: Create) -> int:
        before = await made.count(create.rows)
        await create.call(made.client, made, {})
        await create.call(made.client, made, {"x-stainless-retry-count": "1"})
        return await made.count(create.rows) - before

    once_only = ("completion of an upload", "file of a vector store", "project")
    repeatable = {name: CREATES[name] for name in CREATES if name not in once_only}
    await _of_all(create_twice, 2, **repeatable)


def _as_made(answer: Any) -> Any:
    """The answer without what deliveries to an endpoint change meanwhile."""
    if not isinstance(answer, dict):
        return answer
    counts = ("status", "failures", "failing_since", "waiting")
    return {name: value for name, value in answer.items() if name not in counts}


def _id(answer: Any) -> Any:
    return answer["id"] if isinstance(answer, dict) else answer.id


async def test_a_retry_gets_no_conversation_and_no_upload_that_was_used_since(
    tool_stack: Stack, answering: str
) -> None:
    """Their client closes its connection at once, as if the reply had been lost."""
    made = await _prepare(tool_stack, answering, "used")
    lost = f"idempotency_keys {_OWN} AND lost"

    async def make_and_use(client: openai.AsyncOpenAI, headers: dict[str, str]) -> tuple[str, str]:
        conversation = await client.conversations.create(extra_headers=headers)
        await made.client.conversations.items.create(
            conversation.id, items=[{"role": "user", "content": "One."}]
        )
        upload = await CREATES["upload"].call(client, made, headers)
        await made.client.uploads.parts.create(upload.id, data=b"x")
        return conversation.id, upload.id

    port = tool_stack.webs[0].port
    assert port is not None
    proxy = Proxy("127.0.0.1", port)
    async with _through(proxy, made) as client:
        first = await make_and_use(client, {})
        proxy.cut()

    async def are_lost() -> bool:
        return await made.count(lost) > 0

    await until(are_lost)
    retried = await make_and_use(made.client, {"x-stainless-retry-count": "1"})
    assert not set(first) & set(retried)
    await proxy.close()


async def test_a_key_belongs_to_one_body_of_one_route_and_to_one_project(
    tool_stack: Stack, answering: str
) -> None:
    made = await _prepare(tool_stack, answering, "one body")
    headers = {"Idempotency-Key": "k"}
    store = await made.client.vector_stores.create(name="a", extra_headers=headers)
    for refused in (
        made.client.vector_stores.create(name="b", extra_headers=headers),
        made.client.conversations.create(extra_headers=headers),
        made.client.responses.create(
            model=answering, input="x", background=True, extra_headers=headers
        ),
        made.client.files.create(
            file=("a.txt", CONTENT), purpose="user_data", extra_headers=headers
        ),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            await refused
        assert (error.value.code, error.value.param) == (
            "idempotency_key_reused",
            "Idempotency-Key",
        )
    other = await _prepare(tool_stack, answering, "other project")
    assert (await other.client.vector_stores.create(name="a", extra_headers=headers)).id != store.id
    await made.client.vector_stores.delete(store.id)
    again = await made.client.vector_stores.create(name="a", extra_headers=headers)
    assert again.id != store.id
    used = {"Idempotency-Key": "of a response"}
    await made.client.responses.create(
        model=answering, input="x", background=True, extra_headers=used
    )
    with pytest.raises(openai.BadRequestError, match="used before"):
        await made.client.vector_stores.create(name="a", extra_headers=used)


async def test_a_refused_create_does_not_use_its_key(tool_stack: Stack, answering: str) -> None:
    made = await _prepare(tool_stack, answering, "refused")
    headers = {"Idempotency-Key": "k"}
    with pytest.raises(openai.NotFoundError):
        await made.client.vector_stores.files.create(
            made.store, file_id="file-" + "0" * 32, extra_headers=headers
        )
    await made.client.vector_stores.files.create(
        made.store, file_id=made.file, extra_headers=headers
    )


async def test_secrets_are_stored_sealed_and_shown_only_to_the_key_that_made_them(
    tool_stack: Stack, answering: str
) -> None:
    made = await _prepare(tool_stack, answering, "secrets")
    headers = {"Idempotency-Key": "k"}
    values = []
    for _ in range(2):
        endpoint = await _post(
            made.client, "/webhook_endpoints", headers, url="https://1.1.1.1/secret"
        )
        values.append(endpoint["signing_secret"])
    assert values[0] == values[1]
    async with await psycopg.AsyncConnection.connect(tool_stack.dsn) as connection:
        await connection.execute(set_search_path())
        cursor = await connection.execute("SELECT k::text FROM idempotency_keys k")
        stored = " ".join(row[0] for row in await cursor.fetchall())
    assert values[0] not in stored
    other = made.client.with_options(
        api_key=await asyncio.to_thread(keys.create, tool_stack.dsn, "secrets")
    )
    with pytest.raises(openai.BadRequestError, match="used before"):
        await _post(other, "/webhook_endpoints", headers, url="https://1.1.1.1/secret")


async def test_a_reply_that_was_answered_is_forgotten(tool_stack: Stack, answering: str) -> None:
    made = await _prepare(tool_stack, answering, "forgotten")
    await made.client.conversations.create()
    kept = f"idempotency_keys {_OWN} AND key LIKE 'sdk:%%'"

    async def is_forgotten() -> bool:
        return await made.count(kept) == 0

    await until(is_forgotten)


async def test_a_repeat_gets_items_that_are_too_large_to_be_read_at_once(
    shared_stack: Stack,
) -> None:
    api = shared_stack.api()
    conversation = (await api.call("POST", "/conversations", {})).body["id"]
    texts = ("x" * 100_000, "y")
    body = {"items": [{"role": "user", "content": content} for content in texts]}
    headers = {"idempotency-key": f"of-{conversation}"}
    path = f"/conversations/{conversation}/items"
    made, again = [await api.call("POST", path, body, headers=headers) for _ in range(2)]
    assert (made.status, again.status) == (200, 200)
    assert again.body == made.body
