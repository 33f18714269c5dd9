"""Batches whose input is too large, and batches that lose something while they run: their input
file, the key, a response, the project, or the budget of tokens."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai.types import Batch

from models.ids import parse_batch_id, parse_file_id
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.conftest import PrivateStack
from tests.support import keys
from tests.support.api import until
from tests.support.audit import audit_entries
from tests.support.batches import line, results, start, until_status
from tests.support.fake_upstream import FakeUpstream, done, finish, reply, text, usage, wait_for
from tests.support.projects import limited_project
from tests.support.stack import Databases, Stack, SuiteSettings, stack
from tests.support.worker_rows import run_purge, settings_for

SETTINGS = {
    "BACKBURNER_BATCHES__OPEN": "2",
    "BACKBURNER_BATCHES__REQUESTS": "5",
    "BACKBURNER_BATCHES__LINE": "1000",
}
NAMES = [f"request-{number}" for number in range(5)]


@pytest.fixture(scope="module")
async def small(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment whose batches have five short requests, of which two run at a time."""
    folder = tmp_path_factory.mktemp("small-batches")
    async with stack(folder, database_server, suite_settings, fake, settings=SETTINGS) as running:
        yield running


async def test_a_batch_stores_a_hundred_errors_in_all(small: Stack) -> None:
    """Each group of lines that is checked at a time has fewer of them."""
    client = small.openai()
    lines = (b"x\n" * 99 + b"\n" * 101) * 3
    uploaded = await client.files.create(file=("lines.jsonl", lines), purpose="batch")
    wrong = await client.batches.create(
        input_file_id=uploaded.id, completion_window="24h", endpoint="/v1/responses"
    )
    assert len(_errors(await until_status(client, wrong, "failed"))) == 100


def _errors(batch: Batch) -> list[tuple[str | None, int | None]]:
    assert batch.errors is not None
    return [(error.code, error.line) for error in batch.errors.data or ()]


async def test_a_batch_with_too_many_requests_or_a_long_line_or_without_its_file_fails(
    small: Stack,
) -> None:
    client = small.openai()
    gone = await start(client, [line("a")])
    await client.files.delete(gone.input_file_id)
    many = await start(client, [line(f"request-{number}") for number in range(6)])
    long = await start(client, [line("a"), line("b", metadata="x" * 1000), line("c")])
    assert _errors(await until_status(client, many, "failed")) == [("too_many_tasks", None)]
    assert _errors(await until_status(client, long, "failed")) == [("line_too_long", 2)]
    gone = await until_status(client, gone, "failed")
    assert _errors(gone) == [("input_file_not_found", None)]


@dataclass
class _Running:
    """A batch of five requests of a project of its own, of which two run."""

    stack: Stack
    key: str
    client: openai.AsyncOpenAI
    batch: Batch
    release: asyncio.Event
    """the upstream answers"""

    @classmethod
    async def begin(cls, running: Stack, fake: FakeUpstream, key: str) -> "_Running":
        client, release = running.openai(key=key), asyncio.Event()
        model = fake.script([text("yes"), wait_for(release), finish(), usage(), done()])
        batch = await start(client, [line(name, model) for name in NAMES])
        await until(lambda: len(fake.requests_for(model)) == 2, within=60)
        return cls(running, key, client, batch, release)

    async def finish(self, status: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Lets the upstream answer, and waits for this status: the two files."""
        self.release.set()
        self.batch = await until_status(self.client, self.batch, status)
        return (
            await results(self.client, self.batch.output_file_id),
            await results(self.client, self.batch.error_file_id),
        )

    async def value(self, column: str) -> Any:
        """A column of its row, whoever may see it."""
        query = f"SELECT {column} FROM batches WHERE id = %s"
        return await self.stack.value(query, parse_batch_id(self.batch.id))


def _codes(errors: dict[str, Any]) -> dict[str, str]:
    return {
        name: (one["error"] or one["response"]["body"]["error"])["code"]
        for name, one in errors.items()
    }


async def _lose_its_file(running: _Running) -> None:
    await running.client.files.delete(running.batch.input_file_id)
    output, errors = await running.finish("failed")
    assert sorted(output) == NAMES[:2]
    assert _codes(errors) == dict.fromkeys(NAMES[2:], "batch_failed")
    assert _errors(running.batch) == [("input_file_not_found", None)]


async def _lose_its_key(running: _Running) -> None:
    other = running.stack.openai(key=await _second_key(running))
    await running.stack.value(
        "UPDATE api_keys SET revoked_at = now() WHERE hash = %s RETURNING id",
        keys.hash_key(running.key),
    )
    running.client = other
    output, errors = await running.finish("completed")
    assert sorted(output) == NAMES[:2]
    assert _codes(errors) == dict.fromkeys(NAMES[2:], "invalid_api_key")
    assert {one["response"]["status_code"] for one in errors.values()} == {401}


async def _lose_its_scope(running: _Running) -> None:
    other = running.stack.openai(key=await _second_key(running))
    await _change_key(running, "scopes = '{files}'")
    running.client = other
    output, errors = await running.finish("completed")
    assert sorted(output) == NAMES[:2]
    assert _codes(errors) == dict.fromkeys(NAMES[2:], "missing_scope")


async def _lose_its_model(running: _Running) -> None:
    await _change_key(running, "allowed_models = '{another}'")
    output, errors = await running.finish("completed")
    assert sorted(output) == NAMES[:2]
    assert _codes(errors) == dict.fromkeys(NAMES[2:], "model_not_found")


async def _change_key(running: _Running, change: str) -> None:
    query = f"UPDATE api_keys SET {change} WHERE hash = %s RETURNING id"
    await running.stack.value(query, keys.hash_key(running.key))


async def _lose_its_retention(running: _Running) -> None:
    """What had begun was stored; what begins later is not, and its results are written all the
    same."""
    change = (
        """UPDATE projects SET policy = '{"zero_retention": true}' WHERE id = %s RETURNING id"""
    )
    await running.stack.value(change, await running.value("project_id"))
    output, errors = await running.finish("completed")
    assert (sorted(output), errors) == (NAMES, {})
    kept = "SELECT count(*) FROM responses WHERE request_id = %s AND store"
    assert await running.stack.value(kept, running.batch.id) == 2
    kept = """SELECT count(*) FROM responses
              WHERE request_id = %s AND NOT store AND expires_at > clock_timestamp()"""
    assert await running.stack.value(kept, running.batch.id) == 0


async def _second_key(running: _Running) -> str:
    project = await running.stack.value(
        "SELECT p.name FROM projects p JOIN api_keys k ON k.project_id = p.id WHERE k.hash = %s",
        keys.hash_key(running.key),
    )
    return await asyncio.to_thread(keys.create, running.stack.dsn, project)


async def _lose_a_response(running: _Running) -> None:
    made = await running.stack.value(
        "SELECT 'resp_' || replace(response_id::text, '-', '') FROM batch_lines "
        "WHERE batch_id = %s AND custom_id = %s",
        parse_batch_id(running.batch.id),
        NAMES[0],
    )
    await running.client.responses.delete(made)
    output, errors = await running.finish("completed")
    assert sorted(output) == NAMES[1:]
    assert _codes(errors) == {NAMES[0]: "response_deleted"}


async def _lose_its_project(running: _Running) -> None:
    grant = KeyGrant(frozenset((Scope.ADMIN,)))
    key = await asyncio.to_thread(keys.create, running.stack.dsn, "default", grant=grant)
    admin = running.stack.api(key=key)
    project = await running.value("'proj_' || replace(project_id::text, '-', '')")
    answer = await admin.call("POST", f"/organization/projects/{project}/archive")
    assert answer.status == 200, answer.body

    async def is_cancelled() -> bool:
        return bool(await running.value("status = 'cancelled' AND error_file_id IS NOT NULL"))

    await until(is_cancelled, within=60)
    assert await running.value("failed") == len(NAMES)


async def _use_up_its_tokens(running: _Running) -> None:
    running.release.set()

    async def pauses() -> bool:
        return bool(
            await running.value("completed = 2 AND expander_until > now() + interval '12 s'")
        )

    await until(pauses, within=60)
    assert await running.value("status") == "in_progress"
    await running.client.batches.cancel(running.batch.id)
    output, errors = await running.finish("cancelled")
    assert sorted(output) == NAMES[:2]
    assert _codes(errors) == dict.fromkeys(NAMES[2:], "batch_cancelled")
    [entry] = await audit_entries(running.stack, object=running.batch.id)
    assert (entry["action"], entry["actor"], entry["key_prefix"]) == (
        "batch.cancel",
        "key",
        running.key[:8],
    )


LOSSES = {
    "its file": _lose_its_file,
    "its key": _lose_its_key,
    "its scope": _lose_its_scope,
    "its model": _lose_its_model,
    "its retention": _lose_its_retention,
    "a response": _lose_a_response,
    "its project": _lose_its_project,
}


@pytest.mark.long
async def test_a_batch_that_loses_something_while_it_runs_has_a_result_for_each_request(
    small: Stack, fake: FakeUpstream
) -> None:
    async def run(name: str) -> None:
        key = await asyncio.to_thread(keys.create, small.dsn, f"loses {name}")
        await LOSSES[name](await _Running.begin(small, fake, key))

    async def run_out_of_tokens() -> None:
        project = await limited_project(small, tokens_per_day=2)
        await _use_up_its_tokens(await _Running.begin(small, fake, project.key))

    await asyncio.gather(*map(run, LOSSES), run_out_of_tokens())


@pytest.mark.long
async def test_batches_and_their_files_are_deleted_after_a_retention_of_their_own(
    small: Stack, fake: FakeUpstream
) -> None:
    client = small.openai()
    batch = await start(client, [line("a", fake.script(reply("yes")))])
    batch = await until_status(client, batch, "completed")
    identity = parse_batch_id(batch.id)
    ago = "now() - interval '31 days'"
    await small.value(f"UPDATE batches SET ended_at = {ago} WHERE id = %s RETURNING id", identity)

    async def is_gone() -> bool:
        await run_purge(settings_for(small.dsn))
        return not await small.value("SELECT count(*) FROM batches WHERE id = %s", identity)

    await until(is_gone)
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve(batch.id)
    assert list(await results(client, batch.output_file_id)) == ["a"]
    expire = "UPDATE files SET expires_at = now() WHERE id = %s RETURNING id"
    assert await small.value(expire, parse_file_id(str(batch.output_file_id)))
    with pytest.raises(openai.NotFoundError):
        await results(client, batch.output_file_id)


def _numbered(count: int) -> Sequence[dict[str, Any]]:
    return [line(f"request-{number}") for number in range(count)]


@pytest.mark.long
async def test_a_large_input_is_judged_by_its_own_lines(private_stack: PrivateStack) -> None:
    """Broken JSON in line 40 001, and one request more than a batch may have."""
    async with private_stack() as own:
        client = own.openai()
        broken = await start(client, [*_numbered(40_000), b"{"])
        many = await start(client, _numbered(50_001))
        assert _errors(await until_status(client, broken, "failed")) == [
            ("invalid_json_line", 40_001)
        ]
        assert _errors(await until_status(client, many, "failed")) == [("too_many_tasks", None)]
