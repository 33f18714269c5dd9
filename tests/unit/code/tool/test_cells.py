"""What a worker asks of sandboxes: each cell once, sessions that are lost, files, and no room."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from features.code.containers import AutoContainer, Container, ContainerFile
from features.code.tool import cells as cells_module
from features.code.tool import cells as sessions_module
from features.code.tool.cells import Cells
from features.code.tool.client import DiskFull, SessionLost
from models.ids import new_uuid
from tests.support.memory_sandboxes import MemoryContainers, MemorySandboxes
from worker.tools.provider import ToolCallError

A, B = "http://a", "http://b"
PROJECT = new_uuid()


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is away or full stays so in these tests."""
    for module, name in ((sessions_module, "_WAIT"), (cells_module, "_SILENCE")):
        monkeypatch.setattr(module, name, 0.0)
    for module in (sessions_module, cells_module):
        monkeypatch.setattr(module, "_PAUSE", 0.0)


class Process:
    """A worker process: it shares nothing with others but the store and the sandboxes."""

    def __init__(self, store: MemoryContainers, sandboxes: MemorySandboxes) -> None:
        self.store, self.sandboxes = store, sandboxes
        self.cells = Cells(store, sandboxes)

    async def run(self, container: Container, cell: str, code: str = "x") -> Any:
        return await self.cells.run(container, cell, {"kind": "python", "code": code})


@pytest.fixture
def sandboxes() -> MemorySandboxes:
    return MemorySandboxes({A: 1, B: 2})


@pytest.fixture
def process(sandboxes: MemorySandboxes) -> Process:
    return Process(MemoryContainers(), sandboxes)


@pytest.fixture
async def container(process: Process) -> Container:
    return await process.store.take(PROJECT, new_uuid(), AutoContainer(), None)


async def test_a_session_is_opened_where_most_room_is_and_stays_there(
    process: Process, container: Container
) -> None:
    first = await process.run(container, "ci_1")
    session = process.store.rows[container.id].session
    second = await process.run(container, "ci_2")
    assert process.store.rows[container.id].sandbox == B
    assert process.store.rows[container.id].session == session
    assert first.notes == second.notes == []


async def test_a_worker_that_takes_over_gets_the_result_of_the_same_run(
    process: Process, container: Container, sandboxes: MemorySandboxes
) -> None:
    await process.run(container, "ci_1")
    other = Process(process.store, sandboxes)
    assert (await other.run(container, "ci_1")).result["status"] == "ok"
    assert sandboxes.runs == {"ci_1": 1}


async def test_code_that_may_have_run_in_a_lost_session_is_not_run_again(
    process: Process, container: Container, sandboxes: MemorySandboxes
) -> None:
    await process.run(container, "ci_1")
    sandboxes.lose(B)
    other = Process(process.store, sandboxes)
    with pytest.raises(ToolCallError, match="not run again"):
        await other.run(container, "ci_1")
    # The session that a call beside it has opened is no other one.
    with pytest.raises(ToolCallError, match="not run again"):
        await other.run(container, "ci_1")
    assert sandboxes.runs == {"ci_1": 1}


async def test_a_new_session_has_the_files_and_the_model_knows_that_variables_are_lost(
    process: Process, container: Container, sandboxes: MemorySandboxes
) -> None:
    sandboxes.results["make"] = {"changed": [{"path": "a.txt"}]}
    first = await process.run(container, "ci_0")
    assert first.files == []
    sandboxes.files["s0"]["a.txt"] = b"made"
    made = await process.run(container, "ci_1", "make")
    assert [file.path for file in made.files] == ["a.txt"]
    sandboxes.away.add(B)
    again = await process.run(process.store.rows[container.id], "ci_2")
    row = process.store.rows[container.id]
    assert (row.sandbox, sandboxes.files[str(row.session)]) == (A, {"a.txt": b"made"})
    assert "session was lost" in again.notes[0]
    assert (await process.run(row, "ci_3")).notes == []


async def test_a_file_that_a_client_adds_reaches_a_session_that_lives(
    process: Process, container: Container, sandboxes: MemorySandboxes
) -> None:
    await process.run(container, "ci_1")
    file = ContainerFile(new_uuid(), "late.csv", 1)
    process.store.files["late.csv"] = (file, b"1", "")
    await process.run(container, "ci_2")
    assert sandboxes.files["s0"] == {"late.csv": b"1"}


async def test_of_two_workers_that_open_a_session_one_wins(
    process: Process, container: Container, sandboxes: MemorySandboxes
) -> None:
    class Late(MemoryContainers):
        async def place(self, *args: Any) -> Container:
            await process.run(container, "ci_1")  # the other one is faster
            return await process.store.place(*args)

    late = Late(**vars(process.store))
    late.rows = dict(process.store.rows)
    await Process(late, sandboxes).run(container, "ci_2")
    assert sandboxes.cells["s1"].keys() == {"ci_1", "ci_2"}
    assert await sandboxes.free_sessions(A) + await sandboxes.free_sessions(B) == 2


async def test_without_room_and_without_sandboxes_the_model_gets_the_reason(
    process: Process, container: Container, sandboxes: MemorySandboxes
) -> None:
    sandboxes.room = {A: 0, B: 0}
    with pytest.raises(ToolCallError, match="in use now"):
        await process.run(container, "ci_1")
    sandboxes.away = {A, B}
    with pytest.raises(ToolCallError, match="can be reached"):
        await process.run(container, "ci_1")


async def test_what_is_not_kept_and_what_code_deletes(
    process: Process, container: Container, sandboxes: MemorySandboxes
) -> None:
    process.store.too_large.add("big.bin")
    process.store.files["old"] = (ContainerFile(new_uuid(), "old", 1), b"1", "")
    sandboxes.results["x"] = {"changed": [{"path": "big.bin"}], "deleted": ["old"]}
    outcome = await process.run(container, "ci_1")
    assert (outcome.files, outcome.notes) == ([], ["Note: big.bin is not kept: it is too large."])
    assert process.store.files == {}


async def test_files_of_a_session_that_has_ended_are_not_kept_and_the_result_is(
    process: Process, container: Container, sandboxes: MemorySandboxes
) -> None:
    async def lost(*paths: Any) -> AsyncIterator[bytes]:
        for path in paths:
            if path:
                raise SessionLost
            yield b""

    sandboxes.read_file = lost  # type: ignore[method-assign,assignment]
    sandboxes.results["x"] = {"changed": [{"path": "a"}, {"path": "b"}], "status": "disk"}
    outcome = await process.run(container, "ci_1")
    assert (outcome.result["status"], outcome.files, len(outcome.notes)) == ("disk", [], 1)


async def test_files_that_no_session_can_hold_fail_the_call_with_the_reason(
    process: Process, container: Container, sandboxes: MemorySandboxes
) -> None:
    async def full(*_: Any) -> None:
        raise DiskFull

    sandboxes.put_file = full  # type: ignore[method-assign,assignment]
    process.store.files["big"] = (ContainerFile(new_uuid(), "big", 1), b"1", "")
    with pytest.raises(ToolCallError, match="larger than a session"):
        await process.run(container, "ci_1")
    assert sandboxes.runs == {}


async def test_a_result_is_forgotten_once_it_is_stored_and_never_by_mistake(
    process: Process, container: Container, sandboxes: MemorySandboxes
) -> None:
    await process.run(container, "ci_1")
    assert sandboxes.forgotten == []
    await process.cells.forget(["ci_1", "ci_unknown"])
    sandboxes.away.add(B)
    await process.cells.forget(["ci_1"])
    assert sandboxes.forgotten == ["ci_1"]
