"""A session: a folder, a process that runs its cells one after the other, and their results, which
are kept until they are acknowledged.

What the process reports is text of the code. The server itself reads what was printed, finds what
files have changed, and measures time, memory and disk.
"""

import asyncio
import itertools
import json
import os
import resource
import secrets
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

logger = structlog.get_logger()

ROOT = Path(__file__).parents[3]
_LOOK = 0.5
"""Seconds between two looks at memory and disk."""
_FAREWELL = 2.0
"""Seconds that interrupted code has before its process is killed."""
_REPLY = 4 * 1024 * 1024
_CODE = 512 * 1024 * 1024
"""Address space that Python and its libraries take without using it."""
_PROCESSES = 64
"""Processes and threads of a session."""
_FIRST_UID, _UIDS = 200_000, 1_000_000
_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 7
"""To give files and processes another user, and to reach them then."""


class Unusable(Exception):
    """The session's process cannot be started: its kernel or container lacks what it needs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a session may use."""

    memory: int
    """Bytes: address space of each process, and resident memory of all together."""
    disk: int
    """Bytes of all its files together."""
    file_bytes: int
    """Bytes of one file."""
    files: int
    wall_time: float
    """Seconds of one cell."""
    output: int
    """Bytes that are kept of what a cell prints."""


@dataclass
class Session:
    """One of a sandbox. `python` runs the code; `uid` None: the sandbox is not root, and all
    sessions have its own user."""

    folder: Path
    limits: Limits
    python: str
    uid: int | None
    results: dict[str, "asyncio.Task[dict[str, Any]]"] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    """Cells that were acknowledged or interrupted: they never run again."""
    used_at: float = field(default_factory=time.monotonic)
    _process: subprocess.Popen[bytes] | None = None
    _replies: asyncio.StreamReader | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _running: str | None = None
    _stop_reason: str = ""

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, and no result waits for a worker."""
        return all(cell in self.ended for cell in self.results)

    @property
    def data(self) -> Path:
        """The folder that code knows as /mnt/data."""
        return self.folder / "data"

    def begin(self, cell: str, body: dict[str, Any]) -> None:
        """Runs a cell when those before it have ended. Does nothing for a cell that is known."""
        self.used_at = time.monotonic()
        if cell not in self.results:
            self.results[cell] = asyncio.create_task(self._run(cell, body))

    def end(self, cell: str) -> None:
        """Forgets the result of a cell, or interrupts it."""
        self.ended.add(cell)
        if self._running == cell:
            self._stop("interrupted")

    def close(self) -> None:
        """Ends the process with all that it has started, and deletes the folder."""
        self._kill()
        for task in self.results.values():
            task.cancel()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def start(self) -> None:
        """Starts the process. Raises Unusable."""
        for name in ("data", "out", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            if self.uid is not None:
                os.chown(self.folder / name, self.uid, self.uid)
        if self.uid is not None:
            os.chown(self.folder, self.uid, self.uid)
        self.folder.chmod(0o700)
        reading, writing = os.pipe()
        try:
            self._process = self._spawn(writing)
        except OSError as error:
            os.close(reading)
            raise Unusable(str(error)) from error
        finally:
            os.close(writing)
        self._replies = asyncio.StreamReader(limit=_REPLY)
        protocol = asyncio.StreamReaderProtocol(self._replies)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb"))
        if not await self._replies.readline():
            assert self._process.stderr is not None
            raise Unusable(self._process.stderr.read(2000).decode(errors="replace"))

    def _spawn(self, channel: int) -> subprocess.Popen[bytes]:
        child = Path(__file__).parent / "child.py"
        limits = (str(self.limits.memory + _CODE), str(self.limits.file_bytes))
        most = _PROCESSES if self.uid is not None else 16 * _PROCESSES
        return subprocess.Popen(
            [
                *(self.python, "-I", "-B", "-X", "utf8", str(child), str(ROOT), str(self.folder)),
                *(*limits, str(most), str(os.getpid()), str(channel)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(channel,),
            cwd=self.folder,
            env={
                "HOME": str(self.folder / "tmp"),
                "TMPDIR": str(self.folder / "tmp"),
                "PATH": f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "MPLBACKEND": "Agg",
                "OPENBLAS_NUM_THREADS": "2",
                "OMP_NUM_THREADS": "2",
            },
            start_new_session=True,
            user=self.uid,
            group=self.uid,
            extra_groups=[] if self.uid is not None else None,
        )

    async def _run(self, cell: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._turn:
            if cell in self.ended:
                return {}
            if self._process is None or self._process.poll() is not None:
                self._kill()
                await self.start()
            self._running, self._stop_reason = cell, ""
            logger.info("cell_begun", cell=cell)
            before, started_at = dict(self._files()), time.monotonic()
            cpu = _cpu_ms(self._pids())
            watch = asyncio.create_task(self._watch(self.limits.wall_time))
            try:
                reply = await self._reply(body)
            finally:
                watch.cancel()
                self._running = None
                self.used_at = time.monotonic()
            spent = max(0, _cpu_ms(self._pids()) - cpu)
            self._end_strays()
            return self._result(reply, before, spent, int(1000 * (time.monotonic() - started_at)))

    async def _reply(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._replies is not None
        try:
            nonce = secrets.token_hex(8)
            line = self._inside(json.dumps({**body, "nonce": nonce}))
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
            reply = json.loads(await self._replies.readline())
            while type(reply) is dict and reply.get("nonce") != nonce:
                reply = json.loads(await self._replies.readline())
        except (OSError, ValueError):
            reply = None
        if type(reply) is not dict:
            self._kill()
            return {"status": self._stop_reason or "died"}
        return {**reply, "status": self._stop_reason} if self._stop_reason else reply

    def _result(
        self, reply: dict[str, Any], before: dict[str, tuple[int, int]], cpu: int, wall: int
    ) -> dict[str, Any]:
        after = dict(self._files())
        figures = reply.get("figures")
        figures = figures if type(figures) is list else []
        changed = [
            {"path": path, "bytes": size, "figure": path in figures}
            for path, (_, size) in sorted(after.items())
            if before.get(path) != after[path]
        ]
        outputs = reply.get("outputs")
        return {
            "status": str(reply.get("status", "ok")),
            "stdout": self._printed("stdout"),
            "stderr": self._printed("stderr"),
            "value": self._text(reply.get("value")),
            "error": self._text(reply.get("error")),
            "outputs": [self._output(each) for each in outputs] if type(outputs) is list else [],
            "changed": changed,
            "deleted": sorted(before.keys() - after.keys()),
            "cpu_ms": cpu,
            "wall_ms": wall,
        }

    def _output(self, given: Any) -> dict[str, Any]:
        given = given if type(given) is dict else {}
        code = given.get("exit_code")
        texts = {name: self._text(given.get(name)) for name in ("stdout", "stderr")}
        return {**texts, "exit_code": code if type(code) is int else None}

    def _text(self, given: Any) -> str:
        return self._outside(str(given or "")[: self.limits.output])

    def _printed(self, name: str) -> str:
        """What was printed: its beginning and its end, if it is long."""
        path, most = self.folder / "out" / name, self.limits.output
        try:
            opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return ""
        with os.fdopen(opened, "rb") as file:
            size = os.fstat(opened).st_size
            head = file.read(most if size <= most else most // 2)
            if size > most:
                file.seek(size - most // 2)
                head += b"\n[...]\n" + file.read(most // 2)
        return self._outside(head.decode(errors="replace"))

    def _inside(self, text: str) -> str:
        return text.replace("/mnt/data", str(self.data))

    def _outside(self, text: str) -> str:
        return text.replace(str(self.data), "/mnt/data")

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Path below `data` -> time of its last change and bytes, of plain files. Links are left
        out: they may lead anywhere."""
        found = 0
        for folder, _, names in os.walk(self.data):
            for name in names:
                path = Path(folder, name)
                with suppress(OSError):
                    seen = path.lstat()
                    if stat.S_ISREG(seen.st_mode) and (found := found + 1) <= self.limits.files:
                        yield str(path.relative_to(self.data)), (seen.st_mtime_ns, seen.st_size)

    # --- watching ---

    async def _watch(self, wall_time: float) -> None:
        deadline = time.monotonic() + wall_time
        while not self._stop_reason:
            await asyncio.sleep(_LOOK)
            if time.monotonic() > deadline:
                self._stop("timeout")
            elif _memory(pids := self._pids()) > self.limits.memory:
                self._stop("memory")
            elif len(pids) > _PROCESSES:
                self._stop("processes")
            elif await asyncio.to_thread(self._disk) > self.limits.disk:
                self._stop("disk")

    def _stop(self, reason: str) -> None:
        """Interrupts the code; kills its process if that is not enough."""
        if self._stop_reason or self._process is None:
            return
        self._stop_reason = reason
        self._process.send_signal(signal.SIGINT)
        process = self._process

        def kill_if_running() -> None:
            if self._running is not None and self._process is process:
                self._kill()

        asyncio.get_running_loop().call_later(
            0 if reason == "memory" else _FAREWELL, kill_if_running
        )

    def _disk(self) -> int:
        total = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with suppress(OSError):
                    total += Path(folder, name).lstat().st_blocks * 512
        return total

    def _pids(self) -> list[int]:
        """The processes of the session: code cannot leave it."""
        if self._process is None:
            return []
        return [pid for pid, session in _processes() if session == self._process.pid]

    def _end_strays(self) -> None:
        """Kills what a cell has left running."""
        for pid in self._pids():
            if self._process is not None and pid != self._process.pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _kill(self) -> None:
        if self._process is None:
            return
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


def _processes() -> Iterator[tuple[int, int]]:
    """Process -> its session."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - many, twice a second
        if name.isdigit():
            with suppress(OSError, ValueError):
                yield int(name), os.getsid(int(name))


def _memory(pids: list[int]) -> int:
    """Resident bytes of these processes together."""
    pages = 0
    for pid in pids:
        with suppress(OSError, IndexError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _cpu_ms(pids: list[int]) -> int:
    """CPU time of these processes and of those of their children that have ended."""
    ticks = 0
    for pid in pids:
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return 1000 * ticks // os.sysconf("SC_CLK_TCK")


def own_uids() -> Iterator[int | None]:
    """Users for sessions, each another one; None if this process may not change users."""
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    has_all = effective & _CAPABILITIES == _CAPABILITIES
    for number in itertools.count():
        yield _FIRST_UID + number % _UIDS if has_all else None
