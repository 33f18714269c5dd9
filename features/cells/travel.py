"""A project travels: the command between the two cells. Each step may be repeated, by this command
or another one, and after a kill."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import aiohttp

from features.cells.thing_queries import KINDS
from models.config.feature_groups import CellSettings

_CALL = aiohttp.ClientTimeout(total=30)
_STREAM = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=90)
_ROWS_OF = 100
"""Things that are copied with one request."""
_PAUSE = 0.5
"""Seconds between two rounds, if in the first one nothing could leave."""
_MOST_IN_VAIN = 60
"""Rounds in a row in which nothing can leave, although something may."""
_LEAVING = [name for name, kind in KINDS.items() if kind.mark == "t.id"]
"""Kinds of things that leave by themselves."""
_FIRST = str(UUID(int=0))


class MoveFailed(Exception):
    """A step of a move was refused, or a cell did not answer. The steps before it stay."""


@dataclass(slots=True)
class Moved:
    """What a move has done."""

    keys: int = 0
    left: Counter[str] = field(default_factory=Counter)
    """by kind: what is the target's now"""
    stays: Counter[str] = field(default_factory=Counter)
    """by kind: what is the source's yet"""


@dataclass(slots=True)
class _Round:
    """What a round has found. `busy`: it must stay now. `missing`: it may leave, and has not."""

    left: Counter[str] = field(default_factory=Counter)
    busy: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    all_know: bool = True


class Travel:
    """One command's move of a project from one cell to another. Methods raise MoveFailed."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        cells: tuple[CellSettings, CellSettings],
        project: str,
    ) -> None:
        """`cells`: the source, and the target. `project`: its id."""
        self._session = session
        self._source, self._target = cells
        self._project = project
        self._run = str(uuid4())

    async def move(self, *, wait: bool) -> Moved:
        """Copies everything; then lets the target serve the project; then lets everything go that
        no open response of the source needs. `wait`: until nothing is left there. In the end the
        source deletes what has left."""
        moved = Moved(keys=(await self._import())["keys_added"])
        await self._copy(_Round())
        imported = await self._import()
        moved.keys += imported["keys_added"]
        had_left = imported["moved_at"]
        now = max(time.time_ns() // 1_000_000, (had_left or 0) + 1)
        await self._set(self._source, moved_to=self._target.url, moved_at=now)
        in_vain = 0
        while in_vain < _MOST_IN_VAIN:
            done = _Round()
            await self._copy(done)
            await self._leave(done)
            moved.left += done.left
            moved.stays = done.busy + done.missing
            is_over = done.all_know and not done.missing.total()
            if is_over and not (wait and done.busy.total()):
                break
            in_vain = in_vain + 1 if done.missing.total() and not done.left.total() else 0
            if not done.left.total():
                await asyncio.sleep(_PAUSE)
        if not moved.stays.total():
            await self._forget()
            if had_left is not None:
                await self._set(self._target, moved_to=None, moved_at=None)
        return moved

    async def _set(self, cell: CellSettings, **policy: str | int | None) -> None:
        await self._json(cell, "POST", f"/projects/{self._project}", {"policy": policy})

    async def _forget(self) -> None:
        """The source deletes what the target has."""
        for kind in _LEAVING:
            async for window in self._windows(kind):
                ids = [thing["id"] for thing in window["data"] if thing["has_left"]]
                body = {"kind": kind, "ids": ids}
                await self._json(self._source, "POST", self._things("/forget"), body)

    async def _import(self) -> dict[str, Any]:
        path = f"/cell/projects/{self._project}"
        export = await self._json(self._source, "GET", path)
        return await self._json(self._target, "POST", path, {**export, "run": self._run})

    async def _copy(self, done: _Round) -> None:
        """Copies what the target lacks."""
        for kind in KINDS:
            async for window in self._windows(kind):
                copies = await self._compare(kind, window, is_whole=True)
                lacking = [
                    thing["id"]
                    for thing in window["data"]
                    if thing["version"] not in (None, copies.get(thing["id"]))
                ]
                size = 1 if kind == "files" else _ROWS_OF
                for start in range(0, len(lacking), size):
                    await self._transfer(kind, lacking[start : start + size])
                if kind in _LEAVING:
                    done.busy[kind] += _count(window, is_busy=True)

    async def _leave(self, done: _Round) -> None:
        for kind in _LEAVING:
            async for window in self._windows(kind):
                copies = await self._compare(kind, window)
                versions = {name: version for name, version in copies.items() if version}
                body = {"kind": kind, "run": self._run, "versions": versions}
                answer = await self._json(self._source, "POST", self._things("/leave"), body)
                left = answer["data"]
                done.all_know = done.all_know and answer["all_know"]
                done.left[kind] += len(left)
                done.missing[kind] += _count(window, is_busy=False) - len(left) - answer["waiting"]
                done.busy[kind] += answer["waiting"]
                await self._compare(
                    kind, {"data": [{"id": each, "has_left": True} for each in left]}
                )

    async def _windows(self, kind: str) -> AsyncIterator[dict[str, Any]]:
        """What the source has of a kind."""
        after: str | None = _FIRST
        while after is not None:
            path = self._things(f"?kind={kind}&after={after}")
            window = await self._json(self._source, "GET", path)
            yield {**window, "after": after}
            after = window["until"]

    async def _compare(
        self, kind: str, window: dict[str, Any], *, is_whole: bool = False
    ) -> dict[str, str | None]:
        body = {
            "kind": kind,
            "run": self._run,
            "here": [thing["id"] for thing in window["data"] if not thing["has_left"]],
            "left": [thing["id"] for thing in window["data"] if thing["has_left"]],
            "after": window.get("after", _FIRST),
            "until": window.get("until"),
            "is_whole": is_whole,
        }
        answer = await self._json(self._target, "POST", self._things("/compare"), body)
        versions: dict[str, str | None] = answer["versions"]
        return versions

    async def _transfer(self, kind: str, ids: list[str]) -> None:
        """From one cell to the other, while it comes."""
        source, target = self._source, self._target
        query = f"?kind={kind}&run={self._run}"
        try:
            async with self._session.post(
                _url(source, self._things("/export")),
                json={"kind": kind, "ids": ids},
                headers=authorization(source),
                timeout=_STREAM,
                allow_redirects=False,
            ) as export:
                if export.status == 404 and kind == "files":  # it was deleted meanwhile
                    return
                await _require_ok(source, export)
                async with self._session.put(
                    _url(target, self._things(query)),
                    data=export.content.iter_any(),
                    headers=authorization(target),
                    timeout=_STREAM,
                    allow_redirects=False,
                ) as stored:
                    await _require_ok(target, stored)
        except (aiohttp.ClientError, ValueError, TimeoutError) as error:
            raise MoveFailed(f"the transfer of {kind} broke off: {error}") from error

    def _things(self, rest: str) -> str:
        return f"/cell/projects/{self._project}/things{rest}"

    async def _json(
        self, cell: CellSettings, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return await call(self._session, cell, method, path, body)


def _count(window: dict[str, Any], *, is_busy: bool) -> int:
    return sum(
        not thing["has_left"] and (thing["version"] is None) is is_busy for thing in window["data"]
    )


async def call(
    session: aiohttp.ClientSession,
    cell: CellSettings,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The answer of a cell's admin API. Raises MoveFailed."""
    try:
        async with session.request(
            method,
            _url(cell, path),
            json=body,
            headers=authorization(cell),
            timeout=_CALL,
            allow_redirects=False,
        ) as answer:
            await _require_ok(cell, answer)
            found: dict[str, Any] = await answer.json()
            return found
    except (aiohttp.ClientError, ValueError, TimeoutError) as error:
        raise MoveFailed(f"{cell.url} does not answer as a cell") from error


async def _require_ok(cell: CellSettings, answer: aiohttp.ClientResponse) -> None:
    if answer.status == 200:
        return
    try:
        raise MoveFailed(f"{cell.url}: {(await answer.json())['error']['message']}")
    except (KeyError, TypeError) as error:
        raise MoveFailed(f"{cell.url} does not answer as a cell") from error


def _url(cell: CellSettings, path: str) -> str:
    return f"{cell.url.rstrip('/')}/v1/organization{path}"


def authorization(cell: CellSettings) -> dict[str, str]:
    """The header of requests to a cell."""
    return {"authorization": f"Bearer {cell.admin_key.get_secret_value()}"}
