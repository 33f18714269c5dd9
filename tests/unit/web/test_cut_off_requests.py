"""Requests that still run when a process that stops has no more time."""

import asyncio
from collections.abc import Sequence

import pytest
from starlette.types import Message, Receive, Scope, Send

from models.config.settings import Settings
from web.app import create_app

BEGUN: Message = {"type": "http.response.start", "status": 200, "headers": []}


@pytest.mark.parametrize(("begun", "statuses"), [([], [503]), ([BEGUN], [200])])
async def test_a_request_that_is_cancelled_has_no_traceback(
    begun: Sequence[Message], statuses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(Settings(database_url="postgresql://unused", redis_url="redis://unused"))
    sent: list[Message] = []
    runs = asyncio.Event()

    async def hang(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in begun:
            await send(message)
        runs.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    monkeypatch.setattr(app, "_serve", hang)
    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": []}
    serving = asyncio.create_task(app(scope, receive, send))
    await runs.wait()
    serving.cancel()
    await serving
    starts = [each for each in sent if each["type"] == "http.response.start"]
    assert [each["status"] for each in starts] == statuses
    assert (b"retry-after" in dict(starts[0]["headers"])) == (statuses == [503])
