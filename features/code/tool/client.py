"""Requests to sandboxes, with aiohttp. What they mean is in features/code/sandbox/server.py.

Each request passes the worker's fence (models/fence.py): a worker that was frozen, and has lost its
responses meanwhile, begins no cell.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from models.fence import fenced

POLL = 20.0
"""Seconds that a sandbox keeps a question for a result open."""
_ANSWER = 15.0
"""Seconds within which it answers anything else."""
_CONNECT = 5.0
"""Seconds until its connection is open."""
_READ_SIZE = 64 * 1024


class SandboxUnavailable(Exception):
    """The sandbox cannot be reached, or did not understand."""


class SandboxFull(Exception):
    """The sandbox has no room for one more session."""


class DiskFull(Exception):
    """The session has no room for a file."""


class SessionLost(Exception):
    """The sandbox does not have the session, or its process has died."""


@dataclass(frozen=True, slots=True)
class Place:
    """A session of a sandbox. The id of a session is never used again."""

    sandbox: str
    """The sandbox's base URL."""
    session: str

    def url(self, *parts: str) -> str:
        """The address of something in the session."""
        return "/".join((self.sandbox, "sessions", self.session, *(quote(each) for each in parts)))


class Sandboxes:
    """The sandboxes that a deployment has. One connection pool for the process."""

    def __init__(self, urls: tuple[str, ...], token: str) -> None:
        """`urls`: base URLs. `token`: what sandboxes ask workers for."""
        self.urls = urls
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def free_sessions(self, sandbox: str) -> int:
        """How many more sessions a sandbox can hold now. Raises SandboxUnavailable."""
        status = await self._json("GET", f"{sandbox}/status")
        return int(_field(status, "max_sessions")) - int(_field(status, "sessions"))

    async def open(self, sandbox: str, session: dict[str, Any]) -> Place:
        """Opens a session. Raises SandboxFull and SandboxUnavailable."""
        opened = await self._json("POST", f"{sandbox}/sessions", json=session)
        return Place(sandbox, str(_field(opened, "session")))

    async def has(self, place: Place) -> bool:
        """Whether the session lives. Raises SandboxUnavailable."""
        try:
            await self._json("GET", place.url())
        except SessionLost:
            return False
        return True

    async def close_session(self, place: Place) -> None:
        """Ends a session with everything that runs in it."""
        await self._json("DELETE", place.url())

    async def put_file(self, place: Place, path: str, content: AsyncIterator[bytes]) -> None:
        """Writes a file. `path`: below the session's folder. Raises DiskFull."""
        async with self._request("PUT", place.url("files", path), data=content):
            pass

    async def read_file(self, place: Place, path: str) -> AsyncGenerator[bytes, None]:
        """The content of a file."""
        async with self._request("GET", place.url("files", path)) as response:
            async for chunk in response.content.iter_chunked(_READ_SIZE):
                yield chunk

    async def begin(self, place: Place, cell: str, body: dict[str, Any]) -> None:
        """Lets code run. Nothing happens if the session knows the cell already."""
        await self._json("PUT", place.url("cells", cell), json=body)

    async def result(self, place: Place, cell: str) -> dict[str, Any] | None:
        """The result of a cell; None if it still runs after `POLL` seconds."""
        url = f"{place.url('cells', cell)}?wait={POLL:g}"
        answer = await self._json("GET", url, seconds=POLL + _ANSWER)
        result: dict[str, Any] | None = None
        if _field(answer, "state") == "done":
            result = _field(answer, "result")
        return result

    async def end(self, place: Place, cell: str) -> None:
        """Forgets the result of a cell, or interrupts it."""
        await self._json("DELETE", place.url("cells", cell))

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()

    async def _json(self, method: str, url: str, seconds: float = _ANSWER, **body: Any) -> Any:
        async with self._request(method, url, seconds=seconds, **body) as response:
            content = await response.read()
        try:
            return msgspec.json.decode(content) if content else {}
        except msgspec.MsgspecError as error:
            raise SandboxUnavailable("answered something that is no JSON") from error

    @asynccontextmanager
    async def _request(
        self, method: str, url: str, seconds: float | None = None, **body: Any
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """One request. Raises SandboxFull, DiskFull, SessionLost and SandboxUnavailable."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={"authorization": f"Bearer {self._token}", "user-agent": "backburner"},
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                trace_configs=[fenced()],
            )
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT, sock_read=seconds)
        try:
            async with self._session.request(
                method, URL(url, encoded=True), allow_redirects=False, timeout=timeout, **body
            ) as response:
                if response.status == 503:
                    raise SandboxFull(url)
                if response.status == 413:
                    raise DiskFull(url)
                if response.status in (404, 410):
                    raise SessionLost(url)
                if response.status >= 300:
                    text = (await response.text(errors="replace"))[:200]
                    raise SandboxUnavailable(f"answered with HTTP {response.status}: {text}")
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise SandboxUnavailable(f"{type(error).__name__}: {error}"[:300]) from error


def _field(answer: Any, name: str) -> Any:
    """A field of an answer. Raises SandboxUnavailable."""
    try:
        return answer[name]
    except (LookupError, TypeError) as error:
        raise SandboxUnavailable(f"answered without '{name}'") from error
