"""Processes of the previous release run on the newest schema, beside processes of this release.

During an update the migration runs first, while web and worker processes of the previous release
still serve. So a migration is additive, or it says how to update (docs/deploy.md).
"""

import asyncio
import subprocess
import tarfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import pytest

from cli.embedded.process import Process, free_port
from tests.support.api import Api, until
from tests.support.fake_upstream import FakeUpstream, reply, text, wait_for
from tests.support.schemas import TO_PUBLIC, ChangedDatabases
from tests.support.stack import (
    ROOT,
    SHORT_LEASES,
    Databases,
    Service,
    Stack,
    SuiteSettings,
    stack,
)


def _git(*arguments: str) -> bytes | None:
    """The output of a git command in this repository; None if it fails or git is not installed."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


_FIRST_NEW_MIGRATION = "migrations/versions/0009_edges.py"
"""The first migration that the previous release does not have."""


@pytest.fixture(scope="module")
def previous_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the last commit before the one that added the first new migration."""
    added = _git("log", "--diff-filter=A", "--format=%H", "-1", "--", _FIRST_NEW_MIGRATION)
    if not added:
        pytest.skip("there is no history: there is no previous release to run")
    commit = f"{added.decode().strip()}^"
    archive = _git("archive", commit, "models", "web", "worker", "migrations")
    if archive is None:
        pytest.skip("the clone is too shallow: it lacks the commit before that migration")
    folder = tmp_path_factory.mktemp("previous-release")
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    assert not (folder / _FIRST_NEW_MIGRATION).exists()
    return folder


@pytest.fixture
async def own_stack(
    tmp_path: Path,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment on the newest migration with a web process of this release and no worker. The
    tables are where the previous release has made them."""
    in_public = ChangedDatabases(database_server, TO_PUBLIC)
    async with stack(
        tmp_path, in_public, suite_settings, fake, workers=0, settings=SHORT_LEASES
    ) as own_stack:
        yield own_stack


def _start_previous(
    own_stack: Stack, folder: Path, module: str, port: int | None = None
) -> Service:
    """Starts a process of the previous release. It is not forked from the server that has imported
    the modules of this release."""
    name = f"previous-{module}"
    arguments = ("--host", "127.0.0.1", "--port", str(port)) if port else ("--streams", "20")
    service = Service(
        name,
        own_stack.folder / f"{name}.log",
        module,
        *arguments,
        environment={**own_stack.environment(), "PYTHONPATH": str(folder)},
        port=port,
    )
    service.directory = folder
    Process.launch(service)
    own_stack.started.append(service)
    return service


async def _input_ids(api: Api, response_id: str) -> list[str]:
    page = await api.call("GET", f"/responses/{response_id}/input_items")
    return [item["id"] for item in page.body["data"]]


async def test_the_previous_release_serves_on_the_newest_schema_while_the_new_one_reads(
    own_stack: Stack, previous_release: Path, fake: FakeUpstream
) -> None:
    old_web = _start_previous(own_stack, previous_release, "web", free_port())
    old_worker = _start_previous(own_stack, previous_release, "worker")
    own_stack.webs.append(old_web)
    own_stack.workers.append(old_worker)
    new_api, old_api = own_stack.api(0), own_stack.api(old_web)
    await until(lambda: old_web.is_healthy(own_stack.session), 60)
    await own_stack.wait_until_claiming(old_worker)
    async with own_stack.session.get(f"http://127.0.0.1:{old_web.port}/readyz") as readiness:
        assert readiness.status == 503, "a process of this release would know the newest schema"

    conversation = (await old_api.call("POST", "/conversations", {})).body["id"]
    released = asyncio.Event()
    model = fake.script([text("first "), wait_for(released), *reply("second")])
    async with old_api.post_stream(model, background=True, conversation=conversation) as stream:
        await stream.until("response.output_text.delta")
        response_id = stream.response_id
        running = await new_api.get(response_id)
        assert (running["status"], running["output_text"]) == ("in_progress", "first ")
        async with new_api.follow(response_id) as new_stream:
            released.set()
            old_events, new_events = await asyncio.gather(stream.to_end(), new_stream.to_end())
    assert old_events[-1] == new_events[-1]
    assert old_events[-1]["type"] == "response.completed"
    assert await old_api.get(response_id) == await new_api.get(response_id)
    assert await _input_ids(old_api, response_id) == await _input_ids(new_api, response_id)
    pages = [
        (await api.call("GET", f"/conversations/{conversation}/items")).body["data"]
        for api in (old_api, new_api)
    ]
    assert pages[0] == pages[1]
    assert len(pages[0]) == 2

    # The other way round: stored by the new web process, run by the old worker, continued by both.
    created = await new_api.create_background(fake.script(reply("by the old worker")))
    assert (await old_api.wait_for_end(created))["output_text"] == "by the old worker"
    await own_stack.start_worker()
    await own_stack.stop(old_worker)
    continued = await old_api.create_background(
        fake.script(reply("by the new worker")), previous_response_id=created
    )
    assert (await new_api.wait_for_end(continued))["output_text"] == "by the new worker"
