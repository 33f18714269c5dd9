"""A raw client of the WebSocket (docs/websocket.md).

It sees frames; the openai client hides them.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.api import ENDINGS, JSON, Api


@dataclass(slots=True)
class Socket:
    """One connection. `frames` keeps the text of all frames read so far."""

    connection: ClientConnection
    frames: list[str] = field(default_factory=list)

    async def send(self, **frame: Any) -> None:
        """Sends this JSON as one frame."""
        await self.connection.send(json.dumps(frame))

    async def create(self, model: str, **body: Any) -> None:
        """Sends `response.create`. `input` has a default."""
        await self.send(type="response.create", model=model, **{"input": "Hello.", **body})

    async def next(self) -> JSON:
        """The next frame. Raises `ConnectionClosed`."""
        message = await self.connection.recv()
        assert isinstance(message, str), "a binary frame"
        self.frames.append(message)
        return self.decode(message)

    @staticmethod
    def decode(frame: str) -> JSON:
        """The JSON of a frame."""
        return cast("JSON", json.loads(frame))

    async def until(self, kind: str) -> JSON:
        """Reads until a frame of this type; returns it."""
        while (frame := await self.next())["type"] != kind:
            assert frame["type"] != "error", frame
        return frame

    async def read_to_end(self) -> list[JSON]:
        """The frames up to the next terminal event."""
        frames = [await self.next()]
        while frames[-1]["type"] not in ENDINGS:
            assert frames[-1]["type"] != "error", frames[-1]
            frames.append(await self.next())
        return frames

    async def create_and_read(self, model: str, **body: Any) -> JSON:
        """Sends one create and reads to its end; returns the response of the terminal event."""
        await self.create(model, **body)
        return cast("JSON", (await self.read_to_end())[-1]["response"])

    async def read_error(self) -> JSON:
        """Reads the next frame, which must be an error; returns its error object and its status."""
        frame = await self.next()
        assert set(frame) - {"stream_id"} == {"type", "status", "error"}, frame
        assert frame["type"] == "error", frame
        assert {"message", "type", "param", "code"} <= set(frame["error"]), frame
        return {"status": frame["status"], **frame["error"]}

    async def read_until_error(self) -> JSON:
        """Reads until the next error."""
        while (frame := await self.next())["type"] != "error":
            pass
        return {"status": frame["status"], **frame["error"]}

    async def read_until_closed(self) -> int | None:
        """Reads until the connection is closed; returns the code."""
        try:
            while True:
                await self.next()
        except ConnectionClosed as end:
            return end.rcvd.code if end.rcvd is not None else None


@asynccontextmanager
async def socket(api: Api, path: str = "/responses", **options: Any) -> AsyncIterator[Socket]:
    """A connection with the key of `api`. Raises `InvalidStatus` if the handshake is refused."""
    headers = {"authorization": f"Bearer {api.key}", **options.pop("headers", {})}
    url = f"ws{api.base_url.removeprefix('http')}{path}"
    async with connect(
        url, additional_headers=headers, proxy=None, max_size=None, **options
    ) as connection:
        yield Socket(connection)
