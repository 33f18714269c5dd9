"""/v1/containers with the official client: containers, their files, ends and quotas."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from models.ids import CONTAINER, PROJECT, admin_id, parse_admin_id
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.integration.code.tool.test_code_interpreter import AUTO, calling, code, model_with
from tests.support import keys
from tests.support.api import JSON, until
from tests.support.audit import audit_entries
from tests.support.projects import limited_project
from tests.support.stack import Stack
from tests.support.worker_rows import run_purge, settings_for

_TABLE = ("sales.csv", b"month,sold\n1,5\n2,7\n")


async def _uploaded(client: openai.AsyncOpenAI, name: str = "sales.csv") -> str:
    return (await client.files.create(file=(name, _TABLE[1]), purpose="user_data")).id


async def _ran(stack: Stack, client: openai.AsyncOpenAI, source: str, tool: Any = AUTO) -> Any:
    """The call of a response that runs this code."""
    model = model_with(stack.fake, calling(code(source)))
    response = await client.responses.create(
        model=model, input="run", tools=[tool], include=["code_interpreter_call.outputs"]
    )
    return next(item for item in response.output if item.type == "code_interpreter_call")


async def _sandbox_of(stack: Stack, container: str) -> Any:
    return await stack.value(
        "SELECT sandbox FROM containers WHERE id = %s", parse_admin_id(CONTAINER, container)
    )


async def _expire(stack: Stack, container: str) -> None:
    await stack.value(
        "UPDATE containers SET last_active_at = now() - interval '2 hours' WHERE id = %s "
        "RETURNING 1",
        parse_admin_id(CONTAINER, container),
    )


async def test_a_container_is_made_listed_and_deleted(code_stack: Stack) -> None:
    client = code_stack.openai()
    file = await _uploaded(client)
    made = await client.containers.create(
        name="mine",
        file_ids=[file],
        memory_limit="1g",
        expires_after={"anchor": "last_active_at", "minutes": 5},
        network_policy={"type": "disabled"},
    )
    assert (made.status, made.memory_limit, made.object) == ("running", "1g", "container")
    assert made.expires_after is not None
    assert made.expires_after.minutes == 5
    other = await client.containers.create(name="other")
    listed = [each.id async for each in client.containers.list(limit=1) if each.id]
    assert listed.index(other.id) < listed.index(made.id)
    assert [each.id async for each in client.containers.list(name="mine")] == [made.id]
    assert (await client.containers.retrieve(made.id)).name == "mine"
    [stored] = (await client.containers.files.list(made.id)).data
    assert (stored.path, stored.source, stored.bytes) == ("/mnt/data/sales.csv", "user", 19)
    await client.containers.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        await client.containers.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.containers.delete(made.id)
    assert made.id not in [each.id async for each in client.containers.list()]
    [entry] = await audit_entries(code_stack, action="container.delete", object=made.id)
    assert entry["outcome"] == "done"
    assert (await client.files.retrieve(file)).id == file


async def test_files_are_uploaded_read_replaced_and_deleted(code_stack: Stack) -> None:
    client = code_stack.openai()
    container = (await client.containers.create(name="files")).id
    files = client.containers.files
    first = await files.create(container, file=_TABLE)
    assert (first.object, first.container_id, first.bytes) == ("container.file", container, 19)
    again = await files.create(container, file=("sales.csv", b"new"))
    assert again.id == first.id
    content = await files.content.retrieve(first.id, container_id=container)
    assert content.read() == b"new"
    named = await files.create(container, file_id=await _uploaded(client, "b.csv"))
    listed = [each.path async for each in files.list(container, order="asc", limit=1)]
    assert listed == ["/mnt/data/sales.csv", "/mnt/data/b.csv"]
    assert (await files.retrieve(named.id, container_id=container)).source == "user"
    await files.delete(first.id, container_id=container)
    with pytest.raises(openai.NotFoundError):
        await files.content.retrieve(first.id, container_id=container)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("../../etc/passwd", "passwd"),
        ("a\\b\\..", "file"),
        ("\u202e.csv", ".csv"),
        ("\u65e5" * 200, "\u65e5" * 50),
    ],
)
async def test_a_name_never_leaves_the_folder(code_stack: Stack, name: str, path: str) -> None:
    client = code_stack.openai()
    container = (await client.containers.create(name="names")).id
    stored = await client.containers.files.create(container, file=(name, b"1"))
    assert stored.path == f"/mnt/data/{path}"
    content = await client.containers.files.content.retrieve(stored.id, container_id=container)
    assert content.read() == b"1"


async def test_nothing_is_shown_to_another_project(code_stack: Stack) -> None:
    client = code_stack.openai()
    container = (await client.containers.create(name="secret")).id
    file = (await client.containers.files.create(container, file=_TABLE)).id
    stranger = code_stack.openai(key=(await limited_project(code_stack)).key)
    foreign = await _uploaded(client)
    attempts: list[Callable[[], Awaitable[Any]]] = [
        lambda: stranger.containers.retrieve(container),
        lambda: stranger.containers.delete(container),
        lambda: stranger.containers.files.list(container),
        lambda: stranger.containers.files.create(container, file=_TABLE),
        lambda: stranger.containers.files.retrieve(file, container_id=container),
        lambda: stranger.containers.files.content.retrieve(file, container_id=container),
        lambda: stranger.containers.create(name="mine", file_ids=[foreign]),
        lambda: _ran(
            code_stack, stranger, "1", {"type": "code_interpreter", "container": container}
        ),
    ]
    for attempt in attempts:
        with pytest.raises(openai.NotFoundError):
            await attempt()
    unknown = "cntr_" + "0" * 32
    messages = []
    for each in (container, unknown):
        with pytest.raises(openai.NotFoundError) as refused:
            await stranger.containers.retrieve(each)
        messages.append(refused.value.message.replace(each, "ID"))
    assert messages[0] == messages[1]
    own = (await stranger.containers.create(name="own")).id
    with pytest.raises(openai.NotFoundError):
        await stranger.containers.files.retrieve(file, container_id=own)
    assert [each.id async for each in stranger.containers.list()] == [own]


def _reaching(*domains: str, **more: Any) -> JSON:
    return {
        "name": "a",
        "network_policy": {"type": "allowlist", "allowed_domains": domains, **more},
    }


REFUSED: list[tuple[JSON, str, str]] = [
    ({}, "name", "missing_required_parameter"),
    ({"name": ""}, "name", "empty_string"),
    ({"name": "a", "memory_limit": "64g"}, "memory_limit", "invalid_value"),
    ({"name": "a", "memory_limit": "2g"}, "memory_limit", "invalid_value"),
    (
        {"name": "a", "expires_after": {"anchor": "last_active_at", "minutes": 21}},
        "expires_after.minutes",
        "integer_above_max_value",
    ),
    (
        _reaching("a.example", "example"),
        "network_policy.allowed_domains[1]",
        "invalid_value",
    ),
    (_reaching("http://a.example"), "network_policy.allowed_domains[0]", "invalid_value"),
    (_reaching(), "network_policy.allowed_domains", "empty_array"),
    (
        _reaching("a.example", domain_secrets=[{"domain": "a.example", "name": "A", "value": "s"}]),
        "network_policy.domain_secrets",
        "unsupported_parameter",
    ),
    (
        {"name": "a", "skills": [{"type": "skill_reference", "skill_id": "s"}]},
        "skills",
        "unsupported_parameter",
    ),
    ({"name": "a", "file_ids": ["file-1"] * 51}, "file_ids", "array_above_max_length"),
]


@pytest.mark.parametrize(("body", "param", "error"), REFUSED, ids=lambda each: str(each)[:40])
async def test_what_it_cannot_be_is_said(
    code_stack: Stack, body: JSON, param: str, error: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await code_stack.openai().post("/containers", body=body, cast_to=object)
    assert (refused.value.param, refused.value.code) == (param, error)


async def test_hostile_texts_are_refused_or_kept_as_they_are(code_stack: Stack) -> None:
    api, client = code_stack.api(), code_stack.openai()
    made = await api.call("POST", "/containers", {"name": "a\x00<b>'; --"})
    assert made.status in (200, 400)
    container = (await client.containers.create(name="'; DROP TABLE containers; --")).id
    for path in (
        "/containers?name=%00",
        "/containers?after=x",
        "/containers?limit=1000000",
        f"/containers/{container}%00",
        f"/containers/{container}/files/cfile_%00",
        f"/containers/{container}/files?after=cfile_x",
        f"/containers/{'9' * 5000}",
    ):
        answer = await api.call("GET", path)
        assert answer.status in (200, 400, 404), path
    tool = {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "64g"}}
    with pytest.raises(openai.BadRequestError, match="at most '1g'"):
        await _ran(code_stack, client, "1", tool)


async def test_a_name_that_code_chose_is_no_header(code_stack: Stack) -> None:
    client = code_stack.openai()
    source = "open('/mnt/data/a\"; x-evil=\u65e5.html', 'w').write('<script>')"
    container = (await _ran(code_stack, client, source)).container_id
    [file] = (await client.containers.files.list(container)).data
    assert file.path.startswith('/mnt/data/a"')
    content = await client.containers.files.content.retrieve(file.id, container_id=container)
    assert content.read() == b"<script>"
    headers = content.response.headers
    assert "x-evil" not in headers
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-disposition"].startswith("attachment")
    assert headers["x-content-type-options"] == "nosniff"


async def test_a_create_with_the_same_key_makes_one_container(code_stack: Stack) -> None:
    client = code_stack.openai()
    headers = {"Idempotency-Key": "one container"}
    made = [await client.containers.create(name="once", extra_headers=headers) for _ in range(2)]
    assert made[0].id == made[1].id


async def test_code_and_client_work_on_the_same_files(code_stack: Stack) -> None:
    client = code_stack.openai()
    container = (await client.containers.create(name="shared")).id
    tool = {"type": "code_interpreter", "container": container}
    await client.containers.files.create(container, file=_TABLE)
    source = "text = open('/mnt/data/sales.csv').read()\nopen('/mnt/data/b.txt', 'w').write(text)"
    call = await _ran(code_stack, client, source, tool)
    assert (call.container_id, call.status) == (container, "completed")
    files = {each.path: each async for each in client.containers.files.list(container)}
    assert {each.source for each in files.values()} == {"user", "assistant"}
    made = files["/mnt/data/b.txt"]
    content = await client.containers.files.content.retrieve(made.id, container_id=container)
    assert content.read() == _TABLE[1]


async def test_a_deleted_container_loses_its_session_and_its_files(code_stack: Stack) -> None:
    client = code_stack.openai()
    call = await _ran(code_stack, client, "open('/mnt/data/a.txt', 'w').write('a')")
    container = call.container_id
    assert await _sandbox_of(code_stack, container) is not None
    await client.containers.delete(container)
    await until(lambda: _has_no_session(code_stack, container), 20)
    await run_purge(settings_for(code_stack.dsn))
    identifier = parse_admin_id(CONTAINER, container)
    for table, column in (("containers", "id"), ("container_files", "container_id")):
        query = f"SELECT count(*) FROM {table} WHERE {column} = %s"
        assert await code_stack.value(query, identifier) == 0


async def _has_no_session(stack: Stack, container: str) -> bool:
    return await _sandbox_of(stack, container) is None


async def test_a_stopped_session_is_followed_by_another_with_the_files(code_stack: Stack) -> None:
    client = code_stack.openai()
    container = (
        await _ran(code_stack, client, "open('/mnt/data/a', 'w').write('kept')")
    ).container_id
    await code_stack.value(
        "UPDATE containers SET stop_requested_at = now() WHERE id = %s RETURNING 1",
        parse_admin_id(CONTAINER, container),
    )
    await until(lambda: _has_no_session(code_stack, container), 20)
    tool: Any = {"type": "code_interpreter", "container": container}
    model = model_with(code_stack.fake, calling(code("print(open('/mnt/data/a').read())")))
    await client.responses.create(model=model, input="run", tools=[tool])
    sent = code_stack.fake.requests_for(model)[-1].messages[-1]["content"]
    assert "kept" in sent
    assert "the session was lost" in sent


async def test_an_expired_container_is_shown_and_then_purged(code_stack: Stack) -> None:
    client = code_stack.openai()
    container = (await _ran(code_stack, client, "a = 1")).container_id
    await _expire(code_stack, container)
    assert (await client.containers.retrieve(container)).status == "expired"
    tool = {"type": "code_interpreter", "container": container}
    for attempt in (
        lambda: client.containers.files.create(container, file=_TABLE),
        lambda: _ran(code_stack, client, "1", tool),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await attempt()
        assert refused.value.code == "container_expired"
    await until(lambda: _has_no_session(code_stack, container), 20)
    await run_purge(settings_for(code_stack.dsn))
    with pytest.raises(openai.NotFoundError):
        await client.containers.retrieve(container)


async def test_a_project_at_its_quota_ends_the_session_that_is_idle(code_stack: Stack) -> None:
    project = await limited_project(code_stack, code_sessions=1)
    client = code_stack.openai(key=project.key)
    first = (await _ran(code_stack, client, "a = 1")).container_id
    assert (await _ran(code_stack, client, "a = 2")).status == "completed"
    await until(lambda: _has_no_session(code_stack, first), 20)


async def test_cpu_time_is_counted_and_limited(code_stack: Stack) -> None:
    project = await limited_project(code_stack, code_seconds_per_day=1)
    client = code_stack.openai(key=project.key)
    source = "import time\nwhile time.process_time() < 1.2: pass"
    assert (await _ran(code_stack, client, source)).status == "completed"
    assert (await _ran(code_stack, client, "1")).status == "failed"
    grant = KeyGrant(frozenset((Scope.ADMIN,)), "usage")
    admin = code_stack.openai()
    admin.admin_api_key = keys.create(code_stack.dsn, "default", grant=grant)
    page = await admin.admin.organization.usage.code_interpreter_sessions(
        start_time=int(time.time()) - 60,
        bucket_width="1d",
        project_ids=[admin_id(PROJECT, project.id)],
    )
    [used] = [result for bucket in page.data for result in bucket.results]
    assert type(used).__name__ == "DataResultOrganizationUsageCodeInterpreterSessionsResult"
    counted: Any = used
    assert counted.num_sessions == 1
    assert counted.cpu_milliseconds >= 1000


async def test_files_of_code_count_as_stored_files(code_stack: Stack) -> None:
    project = await limited_project(code_stack, file_bytes=1000)
    client = code_stack.openai(key=project.key)
    call = await _ran(code_stack, client, "open('/mnt/data/big', 'w').write('a' * 2000)")
    assert not (await client.containers.files.list(call.container_id)).data
    with pytest.raises(openai.RateLimitError):
        await client.containers.files.create(call.container_id, file=("b", b"b" * 2000))
