"""The HTTP interface of a sandbox, for workers only: each request shows the token.

| request | answer |
|---|---|
| `GET /status` | `{"sessions", "max_sessions"}` |
| `POST /sessions` | 201 `{"session"}`, an id that is never used again; 503: there is no room |
| `GET`, `DELETE /sessions/{s}` | 404: it is lost |
| `PUT`, `GET /sessions/{s}/files/{path}` | a file |
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
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from features.code.sandbox.session import Limits, Session, Unusable, own_uids
from models.confinement.kernel import forbid_dumps

logger = structlog.get_logger()

_GIB = 1024**3
_CELL = re.compile("[A-Za-z0-9_-]{1,128}")
_MAX_BODY = 1024 * 1024 * 1024
_READ_SIZE = 64 * 1024


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """How a sandbox is run."""

    token: str
    folder: Path
    python: str
    sessions: int
    idle_time: float
    """Seconds without use after which a session ends."""
    limits: Limits


class Sandbox:
    """The sessions of one process."""

    def __init__(self, options: SandboxOptions) -> None:
        self._options = options
        self._sessions: dict[str, Session] = {}
        self._uids = own_uids()

    def app(self) -> web.Application:
        """The application, for aiohttp's runner."""
        app = web.Application(
            client_max_size=_MAX_BODY, middlewares=[_token_check(self._options.token)]
        )
        place = "/sessions/{session}"
        app.add_routes(
            [
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
        session = self._new_session("check", None)
        try:
            await session.start()
        except Unusable as error:
            if session.uid is None:
                raise
            # Python may be in a folder that only its own user can enter.
            logger.warning("sessions_without_own_users", error=str(error))
            self._uids = itertools.repeat(None)
            session.close()
            session = self._new_session("check", None)
            await session.start()
        finally:
            session.close()

    async def _run(self, _: web.Application):  # type: ignore[no-untyped-def]  # noqa: ANN202
        purge = asyncio.create_task(self._end_idle())
        yield
        purge.cancel()
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
        idle = sum(session.is_idle for session in self._sessions.values())
        busy = len(self._sessions) - idle
        # An idle session gives way, so that a worker takes a sandbox with a free place first.
        return web.json_response(
            {"sessions": len(self._sessions) - (idle > 0), "max_sessions": self._options.sessions}
            if len(self._sessions) >= self._options.sessions
            else {"sessions": busy + idle, "max_sessions": self._options.sessions}
        )

    async def _open(self, request: web.Request) -> web.Response:
        body = await request.json()
        self._make_room()
        name = secrets.token_hex(16)
        session = self._new_session(name, body.get("memory_limit"))
        self._sessions[name] = session
        try:
            await session.start()
        except Unusable as error:
            self._drop(name)
            logger.error("session_not_started", error=str(error))  # noqa: TRY400
            raise web.HTTPInternalServerError from error
        return web.json_response({"session": name}, status=201)

    def _new_session(self, name: str, memory_limit: str | None) -> Session:
        options, limits = self._options, self._options.limits
        if memory_limit is not None and memory_limit[:-1].isdigit():
            limits = replace(limits, memory=min(limits.memory, int(memory_limit[:-1]) * _GIB))
        return Session(options.folder / name, limits, options.python, next(self._uids))

    def _make_room(self) -> None:
        """Ends the session that was idle for longest, if there is no room. Raises a 503."""
        if len(self._sessions) < self._options.sessions:
            return
        idle = [name for name, session in self._sessions.items() if session.is_idle]
        if not idle:
            raise web.HTTPServiceUnavailable
        self._drop(min(idle, key=lambda name: self._sessions[name].used_at))

    def _drop(self, name: str) -> None:
        self._sessions.pop(name).close()

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(min(10.0, self._options.idle_time))
            oldest = time.monotonic() - self._options.idle_time
            for name in [n for n, each in self._sessions.items() if each.used_at < oldest]:
                self._drop(name)
            _reap_strangers()

    async def _show(self, request: web.Request) -> web.Response:
        self._session(request)
        return web.json_response({})

    async def _close(self, request: web.Request) -> web.Response:
        self._session(request)
        self._drop(request.match_info["session"])
        return web.json_response({})

    # --- files ---

    async def _put_file(self, request: web.Request) -> web.Response:
        session = self._session(request)
        incoming = session.folder / f"incoming-{secrets.token_hex(8)}"
        try:
            with incoming.open("xb") as file:
                async for chunk in request.content.iter_chunked(_READ_SIZE):
                    file.write(chunk)
            if session.uid is not None:
                os.chown(incoming, session.uid, session.uid)
            folder = _opened_folder(session, request.match_info["path"], is_made=True)
            try:
                name = Path(request.match_info["path"]).name
                os.rename(incoming, name, dst_dir_fd=folder)
            finally:
                os.close(folder)
        finally:
            incoming.unlink(missing_ok=True)
        return web.json_response({})

    async def _get_file(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        folder = _opened_folder(session, request.match_info["path"])
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            opened = os.open(Path(request.match_info["path"]).name, flags, dir_fd=folder)
        except OSError as error:
            raise web.HTTPConflict from error
        finally:
            os.close(folder)
        with os.fdopen(opened, "rb") as file:
            response = web.StreamResponse()
            await response.prepare(request)
            while chunk := file.read(_READ_SIZE):
                await response.write(chunk)
            await response.write_eof()
        return response

    # --- cells ---

    async def _begin(self, request: web.Request) -> web.Response:
        session, cell = self._session(request), request.match_info["cell"]
        if not _CELL.fullmatch(cell):
            raise web.HTTPBadRequest
        if cell in session.ended:
            raise web.HTTPGone
        session.begin(cell, await request.json())
        return web.json_response({})

    async def _result(self, request: web.Request) -> web.Response:
        session = self._session(request)
        task = session.results.get(request.match_info["cell"])
        if task is None:
            raise web.HTTPNotFound
        wait = min(60.0, float(request.query.get("wait", "0")))
        await asyncio.wait([task], timeout=wait)
        if not task.done():
            return web.json_response({"state": "running"})
        return web.json_response({"state": "done", "result": task.result()})

    async def _end(self, request: web.Request) -> web.Response:
        session, cell = self._session(request), request.match_info["cell"]
        session.end(cell)
        return web.json_response({})


def _token_check(token: str) -> Middleware:
    wanted = f"Bearer {token}".encode()

    @web.middleware
    async def require_token(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(errors="replace"), wanted):
            raise web.HTTPUnauthorized
        return await handler(request)

    return require_token


def _opened_folder(session: Session, path: str, *, is_made: bool = False) -> int:
    """The folder of a file below the session's data, opened without following a link: code may
    have put one there. Raises a 409."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    place = os.open(session.data, flags)
    for part in Path(path).parts[:-1]:
        try:
            if part in ("..", "/"):
                raise web.HTTPConflict
            if is_made:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=place)
                    if session.uid is not None:
                        os.chown(part, session.uid, session.uid, dir_fd=place)
            inner = os.open(part, flags, dir_fd=place)
        except OSError as error:
            raise web.HTTPConflict from error
        finally:
            os.close(place)
        place = inner
    return place


def _reap_strangers() -> None:
    """Takes the ended processes that have lost their parent, where this one is process 1."""
    if os.getpid() != 1:
        return
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            os.waitpid(ended.si_pid, os.WNOHANG)


async def serve(options: SandboxOptions, host: str, port: int) -> None:
    """Runs a sandbox until it is cancelled. Raises Unusable."""
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True, mode=0o711)
    forbid_dumps()
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
