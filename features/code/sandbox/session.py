"""A session: a folder, a Python that keeps variables, and the results of cells, which are kept
until they are acknowledged.

What a process reports is text of the code. The server itself reads what was printed, finds what
files have changed, and measures time, memory and disk. Between cells all processes stand still.
"""

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog

from features.code.sandbox import gvisor
from features.code.sandbox.child import Order
from features.code.sandbox.files import Found, TooMuch, find_files, remove, removed_bytes
from features.code.sandbox.network import ENVIRONMENT, READABLE, Handover, SessionNetwork
from features.code.sandbox.program import Program, anonymous, memory_of, pids_of, takes_more
from features.code.sandbox.proxy import HostTraffic

logger = structlog.get_logger()

ROOT = Path(__file__).parents[3]
_LOOK = 0.2
"""Seconds between two looks at memory and disk."""
_FAREWELL = 1.0
"""Seconds that interrupted code has before it is killed."""
_START = 30.0
"""Seconds that a process has to start."""
_REPLY = 4 * 1024 * 1024
_STRAY_LINES = 100
_LIBRARIES = 512 * 1024 * 1024
"""Address space that Python and its libraries take without using it."""
_GVISOR = 128 * 1024 * 1024
"""Memory that gVisor takes for itself."""
_PROCESSES = 64
"""Processes and threads of a session."""
_SHARED_PROCESSES = 4096
"""Of a user that all sessions share."""
_CPU_SECONDS = 3600
"""Of one process, so that nothing computes for ever if the sandbox was killed."""


class Unusable(Exception):
    """The session's process cannot be started: its kernel or container lacks what it needs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a session may use."""

    memory: int
    """Bytes of all processes together."""
    disk: int
    """Bytes of all its files together."""
    file_bytes: int
    """Bytes of one file."""
    files: int
    wall_time: float
    """Seconds of one cell."""
    cpu_time: float
    """Seconds of CPU of one cell, of all its processes together."""
    output: int
    """Characters that are kept of a text that a cell prints."""


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Code or commands to run."""

    kind: str
    code: str = ""
    commands: list[str] = []
    timeout_ms: int | None = None
    """Of each command."""
    max_output_length: int | None = None
    """Characters of each text of a command."""


class _Reply(msgspec.Struct, frozen=True):
    """What the code's process says."""

    nonce: str = ""
    status: str = "died"
    value: str = ""
    error: str = ""
    figures: list[str] = []


@dataclass
class Session:
    """One of a sandbox."""

    folder: Path
    limits: Limits
    python: str
    uid: int | None
    """The user that it has alone; None: the sandbox's own."""
    has_mounts: bool
    """Whether its data is mounted at /mnt/data. If not, that name is replaced in code."""
    is_gvisor: bool = False
    """Whether its processes are in containers of gVisor."""
    project: str = ""
    network: SessionNetwork | None = None
    """None: its code reaches no host."""
    results: dict[str, "asyncio.Task[dict[str, Any]]"] = field(default_factory=dict)
    """Those that nobody has acknowledged."""
    ended: set[str] = field(default_factory=set)
    """Cells that were acknowledged or interrupted: they never run again."""
    is_over: bool = False
    """It used too much disk: it runs nothing any more."""
    used_at: float = field(default_factory=time.monotonic)
    used_disk: int = 0
    _is_started: bool = False
    _python: Program | None = None
    _replies: asyncio.StreamReader | None = None
    _shell: Program | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _running: str | None = None
    _stop_reason: str = ""
    _other_cpu: int = 0
    """Milliseconds of the running cell that are not those of its running processes: those of ended
    commands, less what the processes had used before it."""

    @property
    def is_idle(self) -> bool:
        """Whether it has started, nothing runs, and no result waits for a worker."""
        return self._is_started and not self.results

    @property
    def data(self) -> Path:
        """The folder that code knows as /mnt/data."""
        return self.folder / "data"

    def begin(self, cell: str, body: Cell) -> None:
        """Runs a cell when those before it have ended. Does nothing for a cell that is known."""
        if cell not in self.results:
            self.results[cell] = asyncio.create_task(self._run(cell, body))

    def end(self, cell: str) -> None:
        """Forgets the result of a cell; interrupts it first, if it runs."""
        self.ended.add(cell)
        task = self.results.get(cell)
        if self._running == cell:
            self._stop("interrupted")
        if task is not None:
            task.add_done_callback(lambda _: self.results.pop(cell, None))

    def close(self) -> None:
        """Ends all processes, and deletes the folder."""
        for task in self.results.values():
            task.cancel()
        programs = [each for each in (self._python, self._shell) if each is not None]
        for program in programs:
            program.kill()
        if self.network is not None:
            self.network.close()
            self._log_traffic(self.network.traffic)
        asyncio.get_running_loop().run_in_executor(None, remove, self.folder)

    def _log_traffic(self, traffic: HostTraffic) -> None:
        """For operators: where the project's data may be now."""
        if traffic.hosts:
            logger.info(
                "session_network",
                container=self.folder.name,
                project=self.project,
                hosts=sorted(traffic.hosts),
                sent_bytes=traffic.sent,
                received_bytes=traffic.received,
            )

    def make_folder(self, skeleton: Path) -> None:
        """Makes the folders. `skeleton`: what is in its home, if it exists."""
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o711)
        for name in ("data", "tmp", "out"):
            (self.folder / name).mkdir(mode=0o711 if name == "out" else 0o700)
        for name in ("stdout", "stderr"):
            (self.folder / "out" / name).touch(0o600)
        if skeleton.is_dir():
            shutil.copytree(skeleton, self.folder / "tmp", dirs_exist_ok=True)
        if self.uid is not None:
            for name in ("data", "out/stdout", "out/stderr", "tmp"):
                os.chown(self.folder / name, self.uid, self.uid)
            for path in (self.folder / "tmp").rglob("*"):
                os.chown(path, self.uid, self.uid)

    async def start(self) -> None:
        """Starts Python. Raises Unusable."""
        self._python, self._replies = await self._started(None)
        self._is_started = True

    async def prove_sockets(self) -> None:
        """Raises Unusable if code does not get the sockets by which it reaches hosts."""
        async with asyncio.timeout(_START):
            reply, _ = await self._run_python("import socket\nsocket.socket().close()")
        if reply.status != "ok":
            what = reply.error.strip().rpartition("\n")[2]
            raise Unusable(f"the kernel does not hand calls for sockets over: {what}")

    def use(self) -> dict[str, int]:
        """What it uses now; disk as it was last looked at while a cell ran. Blocks."""
        pids = pids_of(self._programs())
        return {
            "memory_bytes": self._gvisor_memory(pids) if self.is_gvisor else memory_of(pids),
            "memory_limit_bytes": self.limits.memory,
            "disk_bytes": self.used_disk,
            "sent_bytes": 0 if self.network is None else self.network.traffic.sent,
            "received_bytes": 0 if self.network is None else self.network.traffic.received,
        }

    # --- processes ---

    async def _started(self, command: str | None) -> tuple[Program, asyncio.StreamReader]:
        reading, writing = os.pipe()
        handover = None if self.network is None else Handover()
        try:
            program = self._spawn(writing, handover)
        except (OSError, subprocess.SubprocessError) as error:
            os.close(reading)
            raise Unusable(str(error)) from error
        finally:
            os.close(writing)
            if handover is not None:
                os.close(handover.theirs)
        replies = asyncio.StreamReader(limit=_REPLY)
        protocol = asyncio.StreamReaderProtocol(replies)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb"))
        try:
            async with asyncio.timeout(_START):
                order = self._order(command, writing, handover)
                await program.write(f"{json.dumps(order)}\n".encode())
                is_ready = bool(await replies.readline())
            if is_ready and self.network is not None and handover is not None:
                self.network.add(handover.taken())
        except (OSError, TimeoutError):
            is_ready = False
        finally:
            if handover is not None:
                handover.close()
        if not is_ready:
            program.kill()
            raise Unusable(program.start_error() or "the process did not start")
        return program, replies

    def _order(self, command: str | None, channel: int, handover: Handover | None) -> Order:
        return {
            "folder": str(self.folder),
            "has_mounts": self.has_mounts,
            "parent": None if self.is_gvisor else os.getpid(),
            "channel": 1 if self.is_gvisor else channel,
            "handover": None if handover is None else handover.theirs,
            "readable": () if handover is None else READABLE,
            "memory": self.limits.memory + _LIBRARIES,
            "file_bytes": self.limits.file_bytes,
            "processes": _PROCESSES if self.uid is not None else _SHARED_PROCESSES,
            "cpu_seconds": _CPU_SECONDS,
            "command": None if command is None else self._inside(command),
        }

    def _spawn(self, channel: int, handover: Handover | None) -> Program:
        given = [channel] if handover is None else [channel, handover.theirs]
        child = str(Path(__file__).parent / "child.py")
        arguments, env = ["-I", "-B", "-X", "utf8", child, str(ROOT)], self._environment()
        command = [self.python, *arguments]
        if self.is_gvisor:
            command = gvisor.command(self.folder, self.python, arguments, env)
        return Program(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=channel if self.is_gvisor else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=() if self.is_gvisor else given,
                cwd=self.folder,
                env=env,
                start_new_session=True,
                user=self.uid,
                group=self.uid,
                extra_groups=None if self.uid is None else [],
            ),
            is_gvisor=self.is_gvisor,
        )

    def _environment(self) -> dict[str, str]:
        home = str(self.folder / "tmp")
        return {
            "HOME": home,
            "TMPDIR": home,
            "PATH": f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "MPLBACKEND": "Agg",
            "OPENBLAS_NUM_THREADS": "2",
            "OMP_NUM_THREADS": "2",
            **({} if self.network is None else ENVIRONMENT),
        }

    def leaders(self) -> list[int]:
        """The processes that it waits for itself."""
        return [each.pid for each in self._programs()]

    def _programs(self) -> list[Program]:
        both = (self._python, self._shell)
        return [each for each in both if each is not None and each.is_running]

    # --- cells ---

    async def _run(self, cell: str, body: Cell) -> dict[str, Any]:
        async with self._turn:
            if cell in self.ended or self.is_over:
                return self._result(_Reply(), [], None, Found())
            self._running, self._stop_reason = cell, ""
            self._other_cpu = -sum(each.cpu_ms() for each in self._programs())
            logger.info("cell_begun", cell=cell)
            started_at = time.monotonic()
            watch = asyncio.create_task(self._watch())
            cpu, before, reply = 0, None, _Reply(status="ok")
            outputs: list[dict[str, Any]] = []
            try:
                before = await self._found()
                if body.kind == "shell":
                    outputs, cpu = await self._run_commands(body)
                else:
                    reply, cpu = await self._run_python(body.code)
                after = await self._found()
            except (TooMuch, Unusable) as error:
                logger.warning("cell_failed", cell=cell, error=str(error))
                self._stop("disk" if isinstance(error, TooMuch) else "died")
                after = before or Found()
            finally:
                watch.cancel()
                self._running = None
                self.used_at = time.monotonic()
            return {
                **self._result(reply, outputs, before, after),
                "cpu_ms": cpu,
                "wall_ms": int(1000 * (time.monotonic() - started_at)),
            }

    async def _found(self) -> Found:
        return await asyncio.to_thread(find_files, self.data, self.limits.files)

    async def _run_python(self, code: str) -> tuple[_Reply, int]:
        if self._python is None or not self._python.is_running:
            await self.start()
        program = self._python
        assert program is not None
        before = program.cpu_ms()
        program.thaw()
        reply = await self._reply(program, code)
        program.freeze()
        if reply is None:
            program.kill()
            await program.ended()
            reply = _Reply()
        return reply, max(0, program.cpu_ms() - before)

    async def _reply(self, program: Program, code: str) -> _Reply | None:
        """What Python says about this cell. Of an earlier one nothing counts: lines carry a nonce
        that no earlier code could know. None: nothing that can be understood."""
        assert self._replies is not None
        nonce = secrets.token_hex(8)
        line = json.dumps({"code": self._inside(code), "nonce": nonce})
        try:
            await program.write(f"{line}\n".encode())
            for _ in range(_STRAY_LINES):
                said = await self._replies.readline()
                if not said:
                    return None
                with suppress(msgspec.MsgspecError, RecursionError):
                    reply = msgspec.json.decode(said, type=_Reply)
                    if reply.nonce == nonce:
                        return reply
        except (OSError, ValueError):
            pass
        return None

    async def _run_commands(self, body: Cell) -> tuple[list[dict[str, Any]], int]:
        outputs: list[dict[str, Any]] = []
        cpu = 0
        for command in body.commands:
            if self._stop_reason:
                break
            program, _ = await self._started(command)
            self._shell = program
            code: int | None = None
            try:
                async with asyncio.timeout(
                    None if body.timeout_ms is None else body.timeout_ms / 1000
                ):
                    code = await program.ended()
            except TimeoutError:
                program.kill()
                await program.ended()
            cpu += program.cpu_ms()
            self._other_cpu += program.cpu_ms()
            most = min(body.max_output_length or self.limits.output, self.limits.output)
            texts = {name: self._printed(name, most) for name in ("stdout", "stderr")}
            outputs.append({**texts, "exit_code": None if self._stop_reason else code})
        return outputs, cpu

    def _result(
        self, reply: _Reply, outputs: list[dict[str, Any]], before: Found | None, after: Found
    ) -> dict[str, Any]:
        is_python = not outputs
        known = {} if before is None else before.files
        figures = set(reply.figures)
        most = self.limits.output
        return {
            "status": self._stop_reason or reply.status,
            "stdout": self._printed("stdout", most) if is_python else "",
            "stderr": self._printed("stderr", most) if is_python else "",
            "value": self._outside(reply.value[:most]),
            "error": self._outside(reply.error[:most]),
            "outputs": outputs,
            "changed": [
                {"path": path, "bytes": size, "figure": path in figures}
                for path, (_, size) in sorted(after.files.items())
                if known.get(path) != after.files[path]
            ],
            "deleted": sorted(known.keys() - after.files.keys()),
            "hidden": len(after.hidden - (before or after).hidden),
            "cpu_ms": 0,
            "wall_ms": 0,
        }

    def _printed(self, name: str, most: int) -> str:
        """What was printed: its beginning and its end, if it is long."""
        with (self.folder / "out" / name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= most:
                text = file.read()
            else:
                text = file.read(most // 2) + b"\n[...]\n"
                file.seek(size - most // 2)
                text += file.read(most // 2)
        return self._outside(text.decode(errors="replace"))

    def _inside(self, text: str) -> str:
        return text if self.has_mounts else text.replace("/mnt/data", str(self.data))

    def _outside(self, text: str) -> str:
        return text.replace(str(self.data), "/mnt/data").encode(errors="replace").decode()

    # --- watching ---

    async def _watch(self) -> None:
        """Stops the cell at its limits; also if they cannot be looked at."""
        try:
            await self._look()
        except Exception:
            logger.exception("cell_not_watched", cell=self._running)
            self._stop("died")

    async def _look(self) -> None:
        deadline = time.monotonic() + self.limits.wall_time
        next_scan = 0.0
        while not self._stop_reason:
            await asyncio.sleep(_LOOK)
            pids = pids_of(self._programs())
            now = time.monotonic()
            if now > deadline:
                self._stop("timeout")
            elif self._cell_cpu() > self.limits.cpu_time:
                self._stop("cpu")
            elif self._takes_more_memory(pids):
                self._stop("memory")
            elif len(pids) > _PROCESSES:
                self._stop("processes")
            elif now >= next_scan:
                if await asyncio.to_thread(self._is_disk_full, pids):
                    self._stop("disk")
                next_scan = now + 10 * (time.monotonic() - now)

    def _takes_more_memory(self, pids: list[int]) -> bool:
        if self.is_gvisor:
            return self._gvisor_memory(pids) > self.limits.memory + _GVISOR
        return takes_more(pids, self.limits.memory)

    def _gvisor_memory(self, pids: list[int]) -> int:
        """gVisor's own, and that of the code: a file that never had a name."""
        sizes = removed_bytes(pids)
        return anonymous(pids) + sizes.total() - sizes[self.folder.stat().st_dev]

    def _cell_cpu(self) -> float:
        """Seconds."""
        return (self._other_cpu + sum(each.cpu_ms() for each in self._programs())) / 1000

    def _is_disk_full(self, pids: list[int]) -> bool:
        used = removed_bytes(pids)[self.folder.stat().st_dev]
        try:
            for name in ("data", "tmp", "out"):
                used += find_files(self.folder / name, self.limits.files).bytes
        except TooMuch:
            return True
        self.used_disk = used
        return used > self.limits.disk

    def _stop(self, reason: str) -> None:
        """Stops what runs. Code that is only late or unwanted may end by itself first."""
        if self._stop_reason:
            return
        self._stop_reason = reason
        self.is_over = self.is_over or reason == "disk"
        cell, programs = self._running, self._programs()
        is_late = reason in ("timeout", "cpu", "interrupted")

        def kill_if_running() -> None:
            if self._running == cell:
                for program in programs:
                    program.kill()

        if is_late and self._shell in programs:
            programs = [each for each in programs if each is self._shell]
            kill_if_running()
        elif is_late:
            for program in programs:
                program.interrupt()
            asyncio.get_running_loop().call_later(_FAREWELL, kill_if_running)
        else:
            kill_if_running()
