"""Room on full sandboxes goes to the projects in turn."""

import asyncio
from collections import Counter
from typing import Any, cast
from uuid import UUID

import pytest

from features.code.containers import Container
from features.code.tool import cells as module
from features.code.tool.cells import Sessions
from features.code.tool.client import Place, SandboxFull
from models.ids import new_uuid

GREEDY, OTHER = UUID(int=1), UUID(int=2)


class FullSandbox:
    """A sandbox with no room but that which the test makes."""

    urls = ("sandbox",)

    def __init__(self) -> None:
        self.room = 0
        self.asked: set[tuple[str, str]] = set()
        """Project and container of each call that has looked for room."""
        self.opened: list[str] = []

    async def free_sessions(self, _sandbox: str) -> int:
        return self.room

    async def open(self, sandbox: str, request: dict[str, Any]) -> Place:
        self.asked.add((request["project"], request["container"]))
        if not self.room:
            raise SandboxFull("full")
        self.room -= 1
        self.opened.append(request["project"])
        return Place(sandbox, "session")


async def test_a_project_with_many_calls_does_not_get_all_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.001)
    sandbox = FullSandbox()
    opening = Sessions(cast("Any", None), cast("Any", sandbox))

    def call(project: UUID) -> asyncio.Task[Place]:
        container = Container(new_uuid(), project, "1g", None, None)
        return asyncio.create_task(opening._new_session(container))

    calls = [*(call(GREEDY) for _ in range(12)), call(OTHER)]
    while len(sandbox.asked) < 4:  # noqa: ASYNC110 - the sessions look by themselves
        await asyncio.sleep(0.001)
    assert Counter(project for project, _ in sandbox.asked) == {GREEDY.hex: 3, OTHER.hex: 1}
    sandbox.room = len(calls)
    await asyncio.gather(*calls)
    assert Counter(sandbox.opened) == {GREEDY.hex: 12, OTHER.hex: 1}
