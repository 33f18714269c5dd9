"""The HTTP interface of a sandbox, for workers only: each request but the first shows the token.

| request | answer |
|---|---|
| `GET /healthz` | `{}` |
| `GET /status` | `{"sessions", "max_sessions", "memory_bytes"}` |
| `POST /sessions` | 201 `{"session"}`, an id that is never used again; 503: there is no room |
| `GET`, `DELETE /sessions/{s}` | what it uses; 404: it is lost |
| `PUT`, `GET /sessions/{s}/files/{path}` | a file; 409: none; 413: no room |
| `PUT /sessions/{s}/cells/{cell}` | runs it, once; 410: its result was acknowledged |
| `GET /sessions/{s}/cells/{cell}?wait=20` | `{"state": "running"}`, or `done` with the `result` |
| `DELETE /sessions/{s}/cells/{cell}` | acknowledges the result, or interrupts the code |
"""

import asyncio
import hmac
import itertools
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from features.code.sandbox.files import BadPath, move_in, open_plain, remove
from features.code.sandbox.network import SessionNetwork
from features.code.sandbox.packages import Packages
from features.code.sandbox.proxy import Destinations
from features.code.sandbox.session import Cell, Limits, Session, Unusable
from models.confinement.kernel import forbid_dumps, prctl

logger = structlog.get_logger()

_GIB = 1024**3
_CELL = re.compile("[A-Za-z0-9_-]{1,128}")
_CONTAINER = re.compile("[0-9a-f]{32}")
_MAX_BODY = 16 * 1024 * 1024
_READ_SIZE = 64 * 1024
_LONGEST_WAIT = 60.0
_FIRST_UID, _UIDS = 200_000, 1_000_000
_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 7
"""To give files and processes another user, and to reach them then."""
_PR_SET_CHILD_SUBREAPER = 36


class _Opening(msgspec.Struct, frozen=True):
    """The body of `POST /sessions`."""

    container: str = ""
    project: str = ""
    memory_limit: str | None = None
    allowed_domains: list[str] = []
    """Hosts that its code may reach, if the sandbox allows them too."""


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """How a sandbox is run."""

    token: str
    folder: Path
    """Of all sessions: it holds nothing else."""
    packages: Packages
    sessions: int
    idle_time: float
    """Seconds without use after which a session ends."""
    limits: Limits
    runner: str
    """`kernel`, `runsc`, or `auto`: runsc where it works."""
    destinations: Destinations | None = None
    """What code may reach at most; None: nothing."""


class Sandbox:
    """The sessions of one process."""

    def __init__(self, options: SandboxOptions) -> None:
        self._options = options
        self._sessions: dict[str, Session] = {}
        self._uids = own_uids()
        self._has_mounts = True
        self._is_gvisor = False

    def app(self) -> web.Application:
        """The application, for aiohttp's runner."""
        app = web.Application(
            client_max_size=_MAX_BODY, middlewares=[_token_check(self._options.token)]
        )
        place = "/sessions/{session}"
        app.add_routes(
            [
                web.get("/healthz", _healthz),
                web.get("/status", self._status),
                web.post("/sessions", self._open),
                web.get(place, self._show),
                web.delete(place, self._close),
                web.put(f"{place}/files/{{path:.+}}", self._put_file),
                web.get(f"{place}/files/{{path:.+}}", self._get_file),
                web.put(f"{place}/cells/{{cell}}", self._begin),
                web.get(f"{place}/cells/{{cell}}", self._result),
                web.delete(f"{place}/cells/{{cell}}", self._end),
            ]
        )
        app.cleanup_ctx.append(self._run)
        return app

    async def check(self) -> None:
        """Raises Unusable if sessions cannot be confined here."""
        if self._options.destinations is not None:
            if self._options.runner == "auto" and shutil.which("runsc") is not None:
                logger.warning("runsc_not_used", reason="code that reaches hosts needs the kernel")
        elif self._options.runner != "kernel":
            self._uids, self._is_gvisor = itertools.repeat(None), True
            if (failure := await self._failure()) is None:
                logger.info("sandbox_walls", runner="runsc")
                return
            if self._options.runner == "runsc":
                raise failure
            if shutil.which("runsc") is not None:
                logger.warning("runsc_does_not_work", error=str(failure)[-300:])
            self._uids, self._is_gvisor = own_uids(), False
        has_own_users = next(self._uids) is not None
        modes = [(own, mounts) for own in {has_own_users, False} for mounts in (True, False)]
        for own_users, has_mounts in sorted(modes, reverse=True):
            self._uids = own_uids() if own_users else itertools.repeat(None)
            self._has_mounts = has_mounts
            if (failure := await self._failure()) is None:
                walls = {"own_users": own_users, "mounts": has_mounts}
                logger.info("sandbox_walls", runner="kernel", **walls)
                return
            if own_users and not has_mounts:
                python = self._options.packages.python().resolve()
                hint = f"each user must be able to run {python}"
                error = str(failure)[-300:]
                logger.warning("sessions_without_own_users", error=error, hint=hint)
        assert failure is not None
        raise failure

    async def _failure(self) -> Unusable | None:
        """Why a session does not start."""
        destinations = self._options.destinations
        session = self._new_session(_Opening(), destinations)
        try:
            await session.start()
            if destinations is not None:
                await session.prove_sockets()
        except Unusable as error:
            return error
        finally:
            session.close()
        return None

    async def _run(self, _: web.Application) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._end_idle()), asyncio.create_task(self._reap())]
        yield
        for task in tasks:
            task.cancel()
        for session in self._sessions.values():
            session.close()

    def _session(self, request: web.Request) -> Session:
        session = self._sessions.get(request.match_info["session"])
        if session is None:
            raise web.HTTPNotFound
        session.used_at = time.monotonic()
        return session

    # --- sessions ---

    async def _status(self, _: web.Request) -> web.Response:
        """A full sandbox whose sessions are idle has room for one more, and is the last choice."""
        is_full = len(self._sessions) >= self._options.sessions
        gives_way = is_full and any(each.is_idle for each in self._sessions.values())
        uses = await asyncio.to_thread(lambda: [each.use() for each in [*self._sessions.values()]])
        return web.json_response(
            {
                "sessions": len(self._sessions) - gives_way,
                "max_sessions": self._options.sessions,
                "memory_bytes": sum(each["memory_bytes"] for each in uses),
            }
        )

    async def _open(self, request: web.Request) -> web.Response:
        body = _decoded(await request.read(), _Opening)
        self._make_room()
        name = secrets.token_hex(16)
        session = self._new_session(body, self._destinations(body.allowed_domains))
        self._sessions[name] = session
        self._options.packages.want()
        try:
            await session.start()
        except Unusable as error:
            self._drop(name)
            logger.error("session_not_started", error=str(error))  # noqa: TRY400
            raise web.HTTPInternalServerError from error
        return web.json_response({"session": name}, status=201)

    def _destinations(self, domains: list[str]) -> Destinations | None:
        """What a session may reach. Raises a 400."""
        most = self._options.destinations
        if most is None:
            return None
        try:
            hosts = most.hosts.narrowed(domains)
        except ValueError as error:
            raise web.HTTPBadRequest from error
        return replace(most, hosts=hosts) if hosts else None

    def _new_session(self, body: _Opening, destinations: Destinations | None) -> Session:
        options, limits = self._options, self._options.limits
        memory = body.memory_limit
        if memory is not None and memory[:-1].isdigit():
            limits = replace(limits, memory=min(limits.memory, int(memory[:-1]) * _GIB))
        python = options.packages.python()
        session = Session(
            folder=self._free_folder(body.container),
            limits=limits,
            python=str(python),
            uid=next(self._uids),
            has_mounts=self._has_mounts,
            is_gvisor=self._is_gvisor,
            project=body.project,
            network=None if destinations is None else SessionNetwork(destinations),
        )
        session.make_folder(python.parent.parent / "share" / "session-home")
        return session

    def _free_folder(self, container: str) -> Path:
        """The same for each session of a container, if it can be: code may have written its name
        into files."""
        named = container if _CONTAINER.fullmatch(container) else secrets.token_hex(16)
        folder = self._options.folder / named
        return folder.with_name(secrets.token_hex(16)) if folder.exists() else folder

    def _make_room(self) -> None:
        """Ends a session if there is no room: of the project that has most, the one that was idle
        for longest. Raises a 503."""
        if len(self._sessions) < self._options.sessions:
            return
        idle = {name: each for name, each in self._sessions.items() if each.is_idle}
        if not idle:
            raise web.HTTPServiceUnavailable
        held = Counter(each.project for each in self._sessions.values())
        self._drop(min(idle, key=lambda name: (-held[idle[name].project], idle[name].used_at)))

    def _drop(self, name: str) -> None:
        self._sessions.pop(name).close()

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(min(10.0, self._options.idle_time))
            oldest = time.monotonic() - self._options.idle_time
            for name in [n for n, each in self._sessions.items() if each.used_at < oldest]:
                self._drop(name)

    async def _reap(self) -> None:
        """Takes ended processes that have lost their parent; sessions wait for their own."""
        while True:
            await asyncio.sleep(1.0)
            with suppress(ChildProcessError):
                _reap_strangers({pid for each in self._sessions.values() for pid in each.leaders()})

    async def _show(self, request: web.Request) -> web.Response:
        session = self._session(request)
        if session.is_over:
            raise web.HTTPNotFound
        return web.json_response(await asyncio.to_thread(session.use))

    async def _close(self, request: web.Request) -> web.Response:
        self._session(request)
        self._drop(request.match_info["session"])
        return web.json_response({})

    # --- files ---

    async def _put_file(self, request: web.Request) -> web.Response:
        session = self._session(request)
        incoming = session.folder / f"incoming-{secrets.token_hex(8)}"
        room = session.limits.disk - session.used_disk
        try:
            with incoming.open("xb") as file:
                async for chunk in request.content.iter_chunked(_READ_SIZE):
                    room -= len(chunk)
                    if room < 0:
                        raise web.HTTPRequestEntityTooLarge(session.limits.disk, 0)
                    await asyncio.to_thread(file.write, chunk)
                if session.uid is not None:
                    os.fchown(file.fileno(), session.uid, session.uid)
            path = request.match_info["path"]
            await asyncio.to_thread(move_in, incoming, session.data, path, session.uid)
            session.used_disk = session.limits.disk - room
        except BadPath as error:
            raise web.HTTPConflict from error
        finally:
            incoming.unlink(missing_ok=True)
        return web.json_response({})

    async def _get_file(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        try:
            opened = await asyncio.to_thread(open_plain, session.data, request.match_info["path"])
        except BadPath as error:
            raise web.HTTPConflict from error
        with os.fdopen(opened, "rb") as file:
            left = os.fstat(opened).st_size
            response = web.StreamResponse()
            await response.prepare(request)
            while left and (chunk := await asyncio.to_thread(file.read, min(left, _READ_SIZE))):
                left -= len(chunk)
                await response.write(chunk)
            await response.write_eof()
        return response

    # --- cells ---

    async def _begin(self, request: web.Request) -> web.Response:
        session, cell = self._session(request), request.match_info["cell"]
        body = _decoded(await request.read(), Cell)
        if not _CELL.fullmatch(cell) or body.kind not in ("python", "shell"):
            raise web.HTTPBadRequest
        if cell in session.ended:
            raise web.HTTPGone
        if session.is_over and cell not in session.results:
            raise web.HTTPNotFound
        session.begin(cell, body)
        return web.json_response({})

    async def _result(self, request: web.Request) -> web.Response:
        session = self._session(request)
        task = session.results.get(request.match_info["cell"])
        if task is None:
            raise web.HTTPNotFound
        try:
            wait = min(_LONGEST_WAIT, max(0.0, float(request.query.get("wait", "0"))))
        except ValueError as error:
            raise web.HTTPBadRequest from error
        await asyncio.wait([task], timeout=wait)
        if not task.done():
            return web.json_response({"state": "running"})
        return web.json_response({"state": "done", "result": task.result()})

    async def _end(self, request: web.Request) -> web.Response:
        self._session(request).end(request.match_info["cell"])
        return web.json_response({})


async def _healthz(_: web.Request) -> web.Response:
    return web.json_response({})


_Body = TypeVar("_Body")


def _decoded(body: bytes, kind: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise web.HTTPBadRequest from error


def _token_check(token: str) -> Middleware:
    wanted = f"Bearer {token}".encode()

    @web.middleware
    async def require_token(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("authorization", "").encode(errors="replace")
        if request.path != "/healthz" and not hmac.compare_digest(given, wanted):
            raise web.HTTPUnauthorized
        return await handler(request)

    return require_token


def own_uids() -> Iterator[int | None]:
    """Users for sessions, each another one; None if this process may not change users."""
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    has_all = effective & _CAPABILITIES == _CAPABILITIES
    for number in itertools.count():
        yield _FIRST_UID + number % _UIDS if has_all else None


def _reap_strangers(own: set[int]) -> None:
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
        if ended.si_pid in own:
            return  # its session takes it now
        os.waitpid(ended.si_pid, os.WNOHANG)


async def serve(options: SandboxOptions, host: str, port: int) -> None:
    """Runs a sandbox until it is cancelled. Raises Unusable."""
    await asyncio.to_thread(remove, options.folder)
    options.folder.mkdir(parents=True)
    options.folder.chmod(0o711)
    forbid_dumps()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    sandbox = Sandbox(options)
    await sandbox.check()
    runner = web.AppRunner(sandbox.app(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        logger.info("sandbox_ready", host=host, port=port, sessions=options.sessions)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
