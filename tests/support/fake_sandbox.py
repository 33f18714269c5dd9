"""A sandbox without walls, for tests of workers where no real one is there: the protocol, sessions
that run Python in a process of their own, results that are kept until they are forgotten.

`python -m tests.support.fake_sandbox PORT FOLDER`. Each run of a cell adds a line to FOLDER/runs.
"""

import asyncio
import json
import secrets
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

MAX_SESSIONS = 64

_SESSION = """
import ast, contextlib, io, json, os, subprocess, sys, traceback
os.chdir(sys.argv[1])
scope = {}
for line in sys.stdin:
    cell = json.loads(line)
    out, err, result = io.StringIO(), io.StringIO(), {"value": "", "error": "", "outputs": []}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if cell["kind"] == "shell":
                for command in cell["commands"]:
                    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
                    result["outputs"].append({
                        "stdout": ran.stdout, "stderr": ran.stderr, "exit_code": ran.returncode
                    })
            else:
                tree = ast.parse(cell["code"])
                last = tree.body and isinstance(tree.body[-1], ast.Expr) and tree.body.pop()
                exec(compile(tree, "cell", "exec"), scope)
                value = last and eval(compile(ast.Expression(last.value), "cell", "eval"), scope)
                result["value"] = repr(value) if last and value is not None else ""
        except BaseException:
            result["error"] = traceback.format_exc()
    result |= {"stdout": out.getvalue(), "stderr": err.getvalue()}
    result["status"] = "error" if result["error"] else "ok"
    print(json.dumps(result), file=sys.__stdout__, flush=True)
"""


@dataclass
class Session:
    """A folder, a process, and the results of its cells."""

    folder: Path
    process: asyncio.subprocess.Process
    results: dict[str, asyncio.Task[dict[str, Any]]] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def seen(self) -> dict[str, tuple[int, int]]:
        return {
            str(path.relative_to(self.folder)): (path.stat().st_mtime_ns, path.stat().st_size)
            for path in self.folder.rglob("*")
            if path.is_file()
        }


class FakeSandbox:
    """The HTTP interface."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sessions: dict[str, Session] = {}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.add_routes(
            [
                web.get("/status", self._status),
                web.post("/sessions", self._open),
                web.get("/sessions/{s}", self._alive),
                web.delete("/sessions/{s}", self._close),
                web.put("/sessions/{s}/files/{path:.+}", self._put_file),
                web.get("/sessions/{s}/files/{path:.+}", self._get_file),
                web.put("/sessions/{s}/cells/{cell}", self._begin),
                web.get("/sessions/{s}/cells/{cell}", self._result),
                web.delete("/sessions/{s}/cells/{cell}", self._end),
            ]
        )
        return app

    def _session(self, request: web.Request) -> Session:
        session = self._sessions.get(request.match_info["s"])
        if session is None:
            raise web.HTTPNotFound
        return session

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response({"sessions": len(self._sessions), "max_sessions": MAX_SESSIONS})

    async def _open(self, _: web.Request) -> web.Response:
        if len(self._sessions) >= MAX_SESSIONS:
            raise web.HTTPServiceUnavailable
        name = secrets.token_hex(8)
        folder = self._folder / name
        folder.mkdir(parents=True)
        self._sessions[name] = Session(folder, await self._start(folder))
        return web.json_response({"session": name}, status=201)

    async def _start(self, folder: Path) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _SESSION, str(folder)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )

    async def _alive(self, request: web.Request) -> web.Response:
        self._session(request)
        return web.json_response({})

    async def _close(self, request: web.Request) -> web.Response:
        session = self._session(request)
        del self._sessions[request.match_info["s"]]
        session.process.kill()
        shutil.rmtree(session.folder, ignore_errors=True)
        return web.json_response({})

    async def _put_file(self, request: web.Request) -> web.Response:
        path = self._session(request).folder / request.match_info["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(await request.read())
        return web.json_response({})

    async def _get_file(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(self._session(request).folder / request.match_info["path"])

    async def _begin(self, request: web.Request) -> web.Response:
        session, cell = self._session(request), request.match_info["cell"]
        if cell in session.forgotten:
            raise web.HTTPConflict
        if cell not in session.results:
            body = await request.json()
            session.results[cell] = asyncio.create_task(self._run(session, cell, body))
        return web.json_response({})

    async def _run(self, session: Session, cell: str, body: dict[str, Any]) -> dict[str, Any]:
        async with session.turn:
            if cell in session.forgotten:
                return {}
            with (self._folder / "runs").open("a") as runs:
                runs.write(f"{cell}\n")
            before = session.seen()
            text = json.dumps(body).replace("/mnt/data", str(session.folder))
            assert session.process.stdin is not None
            assert session.process.stdout is not None
            session.process.stdin.write(f"{text}\n".encode())
            line = await session.process.stdout.readline()
            result = json.loads(line or '{"status": "died"}')
            if not line:
                session.process = await self._start(session.folder)
            after = session.seen()
            changed = [
                {"path": path, "bytes": after[path][1], "figure": path.startswith("figure")}
                for path in after
                if before.get(path) != after[path]
            ]
            deleted = [path for path in before if path not in after]
            empty = {"stdout": "", "stderr": "", "value": "", "error": "", "outputs": []}
            used = {"changed": changed, "deleted": deleted, "cpu_ms": 1, "wall_ms": 1}
            return {**empty, **result, **used}

    async def _result(self, request: web.Request) -> web.Response:
        task = self._session(request).results.get(request.match_info["cell"])
        if task is None:
            raise web.HTTPNotFound
        await asyncio.wait([task], timeout=float(request.query.get("wait", "0")))
        if not task.done():
            return web.json_response({"state": "running"})
        return web.json_response({"state": "done", "result": task.result()})

    async def _end(self, request: web.Request) -> web.Response:
        session, cell = self._session(request), request.match_info["cell"]
        session.forgotten.add(cell)
        task = session.results.get(cell)
        if task is not None and not task.done():
            session.process.kill()
        return web.json_response({})


if __name__ == "__main__":
    web.run_app(
        FakeSandbox(Path(sys.argv[2])).app(), host="127.0.0.1", port=int(sys.argv[1]), print=None
    )
