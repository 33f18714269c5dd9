"""Shared by tests of steering."""

import asyncio
from typing import Any

from tests.support.api import JSON, Api
from tests.support.fake_upstream import Step, done, finish, text, usage, wait_for


def held_reply(gate: asyncio.Event) -> list[Step]:
    """A reply that ends when the gate is open."""
    return [text("Once "), wait_for(gate), text("more."), finish(), usage(), done()]


def user_message(content: Any) -> JSON:
    """A message of the user."""
    return {"type": "message", "role": "user", "content": content}


async def steers_of(api: Api, response: str) -> list[JSON]:
    """The steers of a response, in order."""
    answer = await api.call("GET", f"/responses/{response}/steer", params={"order": "asc"})
    assert answer.status == 200, answer.raw
    data: list[JSON] = answer.body["data"]
    return data
