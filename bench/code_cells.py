"""How long code of a model waits for its sandbox."""

import asyncio
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp

from bench.figures import Row
from bench.load import Load
from bench.profiling import Profiler
from cli.embedded.process import Process, free_port


async def run(folder: Path, load: Load, profiler: Profiler) -> AsyncIterator[Row]:
    """Start of a session compared with that of a Python; a cell of Python and one of a shell."""
    del profiler
    token, port = secrets.token_hex(16), free_port()
    command = [sys.executable, "-m", "cli.main", "sandbox", f"--port={port}", f"--folder={folder}"]
    environment = {"PATH": "/usr/bin:/bin", "BACKBURNER_CODE__TOKEN": token}
    process = Process("sandbox", folder / "log", command, environment=environment)
    process.directory = Path(__file__).parents[1]
    process.launch()
    headers = {"authorization": f"Bearer {token}"}
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as client:
            await _wait_until_ready(client)
            session = await _open(client)
            python = await _median(lambda: _run(client, session, "python"), load.samples)
            shell = await _median(lambda: _run(client, session, "shell"), load.samples)
            # a full sandbox ends the oldest one
            start = await _median(lambda: _open(client), load.samples)
    finally:
        process.stop()
    raw = await _median(_start_python, load.samples)
    yield Row("start of a session for code", start, "ms", None, raw, "a Python that does nothing")
    yield Row("a cell of Python that does nothing", python, "ms")
    yield Row("a command of a shell that does nothing", shell, "ms")


async def _wait_until_ready(client: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                async with client.get("/healthz"):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


async def _open(client: aiohttp.ClientSession) -> str:
    async with client.post("/sessions", json={}) as answer:
        assert answer.status == 201, await answer.text()
        return f"/sessions/{(await answer.json())['session']}"


async def _run(client: aiohttp.ClientSession, session: str, kind: str) -> None:
    path = f"{session}/cells/{secrets.token_hex(8)}"
    body = {"kind": kind, "code": "pass", "commands": ["true"]}
    async with client.put(path, json=body) as answer:
        assert answer.status == 200, await answer.text()
    async with client.get(path, params={"wait": "30"}) as answer:
        assert (await answer.json())["result"]["status"] == "ok"
    async with client.delete(path) as answer:
        assert answer.status == 200


async def _start_python() -> None:
    command = [sys.executable, "-I", "-c", "pass"]
    await asyncio.to_thread(subprocess.run, command, check=True)


async def _median(step: Callable[[], Awaitable[object]], samples: int) -> float:
    """Milliseconds."""
    times = []
    for _ in range(samples):
        began = time.monotonic()
        await step()
        times.append(1000 * (time.monotonic() - began))
    return statistics.median(times)
