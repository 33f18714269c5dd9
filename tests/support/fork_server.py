"""Starts web and worker processes by forking a process that has imported their modules.

Importing the libraries costs a process about a second of CPU, and the product's modules a third of
one; the suite starts hundreds of processes. So each pytest process keeps a fork server with the
libraries, and two that are forked from it: for web processes and for workers. A child reads its own
environment and runs `python -m <module>` by `runpy`. A web process never has a worker's modules, as
in production: importing them registers items and tools. Processes started without this shortcut are
proved by tests/integration/operator/test_up.py and tests/integration/deployment/test_read_only.py.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LIBRARIES = (
    *("aiohttp", "alembic.config", "celery.app.base", "celery.bin.celery", "celery.bin.worker"),
    *("celery.fixups", "celery.concurrency.base", "celery.worker.components", "celery.apps.worker"),
    *("celery.worker.consumer", "celery.loaders.app", "celery.utils.dispatch", "celery.signals"),
    *("celery.backends.base", "kombu.matcher", "billiard.pool", "billiard.dummy", "truststore"),
    *("celery.app.amqp", "celery.app.control", "celery.app.events", "celery.app.log"),
    *("celery.events", "celery.fixups.django", "celery.worker.autoscale", "celery.worker.strategy"),
    *("celery.worker.consumer.delayed_delivery", "encodings.idna", "kombu.pidbox"),
    *("httpcore2", "httpcore2._backends.anyio", "anyio.streams.tls", "h11", "brotli"),
    *("cryptography.hazmat.primitives.ciphers.aead", "fastapi", "fastapi.openapi.docs", "httpx2"),
    *("httptools", "kombu.transport.redis", "kombu.transport.virtual", "mcp", "mcp.client.sse"),
    *("mcp.client.streamable_http", "msgspec", "openai", "openai.resources.chat.completions"),
    *("openai.resources.responses", "openai.types.responses", "orjson", "prometheus_client"),
    *("psycopg", "psycopg_pool", "pydantic", "pydantic_settings", "redis.asyncio"),
    *("sqlalchemy.dialects.postgresql", "sse_starlette", "structlog", "uvicorn", "uvloop"),
    *("uvicorn.lifespan.on", "uvicorn.loops.uvloop", "uvicorn.protocols.http.httptools_impl"),
    *("uvicorn.protocols.websockets.websockets_sansio_impl", "websockets", "yaml"),
)
"""What is imported before the first fork.

A library that is missing here costs time, nothing else.
"""

MODULES = {
    "web": (
        *("web.app", "web.http.protocol"),
        *("models.config.configuration", "models.confinement.policy", "models.process"),
    ),
    "worker": ("worker.celery.app", "worker.celery.pool", "models.process"),
}
"""The product's modules that are imported too, by what is started. None of them reads the
environment or starts a thread when it is imported."""

PARTS = {"web": ("site", "web", "routes"), "worker": ("worker", "purge")}
"""The parts of features that each such process imports when it starts (models/features.py)."""

_DEATH_SIGNAL, _NAME = 1, 15
"""Options of prctl(2)."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One process to start."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    log: str
    """Both outputs are appended to this file."""
    directory: str
    name: str
    """What `ps` shows."""


class ForkedProcess:
    """A child of the fork server.

    The methods are those of `subprocess.Popen` that `cli.embedded.process.Process` calls.
    """

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """The exit code (negative: the signal), or None while the process runs."""
        if self.returncode is None:
            self.returncode = self._server.request(pid=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit code. Raises TimeoutExpired after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The fork server as its users see it. It ends with this process, and its children with it."""

    def __init__(
        self, connection: socket.socket, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        """`process`: the server at the other end, if it is a child of this process."""
        self._process = process
        self._socket = connection
        self._lines = connection.makefile("rwb")
        self._lock = threading.Lock()

    @classmethod
    def with_libraries(cls, directory: Path) -> "ForkServer":
        """A new process, which imports the libraries."""
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=theirs.fileno(),
            cwd=directory,
            start_new_session=True,
        )
        theirs.close()
        return cls(ours, process)

    def with_modules(self, product: str) -> "ForkServer":
        """A fork of this one, which imports the modules of this key of MODULES too."""
        with socket.socket(socket.AF_UNIX) as listener:
            name = f"backburner-tests-{secrets.token_hex(8)}"
            listener.bind(f"\0{name}")  # of no file
            listener.listen(1)
            self.request(product=product, address=name)
            connection, _ = listener.accept()
        return ForkServer(connection)

    def launch(self, launch: Launch) -> ForkedProcess:
        """Starts a process."""
        pid = self.request(**asdict(launch))
        assert pid is not None
        return ForkedProcess(self, pid)

    def request(self, **fields: Any) -> int | None:
        """Sends one request and reads its answer: a pid, or the exit code of a pid, or None."""
        with self._lock:
            self._lines.write(json.dumps(fields).encode() + b"\n")
            self._lines.flush()
            line = self._lines.readline()
        assert line, "the fork server has ended"
        answer: int | None = json.loads(line)
        return answer


@functools.cache
def fork_server(directory: Path, product: str = "") -> ForkServer:
    """The fork server of this process for a key of MODULES, started at the first call."""
    if not product:
        return ForkServer.with_libraries(directory)
    return fork_server(directory, "").with_modules(product)


def _serve(connection: socket.socket) -> Launch | None:
    """Answers requests until the connection ends.

    Returns the launch in a child, None in the server itself.
    """
    lines = connection.makefile("rwb")
    answer: int | None
    for line in lines:
        fields = json.loads(line)
        if "product" in fields:
            if (answer := os.fork()) == 0:
                with contextlib.suppress(OSError):
                    lines.close()
                connection.close()
                own = socket.socket(socket.AF_UNIX)
                own.connect(f"\0{fields['address']}")
                _import(MODULES[fields["product"]])
                _import_parts(PARTS[fields["product"]])
                return _serve(own)
        elif "module" in fields:
            parent = os.getpid()
            if (pid := os.fork()) == 0:
                with contextlib.suppress(OSError):
                    lines.close()
                connection.close()
                launch = Launch(**fields)
                _become(launch, parent)
                return launch
            answer = pid
        else:
            answer = _exit_code(fields["pid"])
        lines.write(json.dumps(answer).encode() + b"\n")
        lines.flush()
    return None


def _exit_code(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(launch: Launch, parent: int) -> None:
    """Gives a forked child its session, files, directory, environment and arguments."""
    os.setsid()
    libc = ctypes.CDLL(None)
    libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_NAME, launch.name.encode()[:15], 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the fork server has ended already")
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(launch.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for opened, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(opened, number)
    for opened in (null, log):
        os.close(opened)
    os.chdir(launch.directory)
    os.environ.clear()  # noqa: TID251  # a child gets exactly the environment of its launch
    os.environ.update(launch.environment)  # noqa: TID251
    sys.argv = [launch.module, *launch.arguments]


def _import_parts(names: Iterable[str]) -> None:
    """Imports these parts of all features."""
    # Not at the top: only a fork for one of MODULES has modules of the product.
    from models.features import feature_parts

    for name in names:
        feature_parts(name)
    gc.freeze()


def _import(modules: Iterable[str]) -> None:
    """Imports modules, whose objects no garbage collection in a child looks at."""
    for name in modules:
        # Of the libraries, some may be missing.
        with contextlib.suppress(ImportError) if name in LIBRARIES else contextlib.nullcontext():
            importlib.import_module(name)
    assert threading.active_count() == 1, "a module started a thread, which a fork would lose"
    gc.freeze()


if __name__ == "__main__":
    _import(LIBRARIES)
    started = _serve(socket.socket(fileno=0))
    if started is not None:
        # Not inside `_serve`: so the interpreter ends as it does after `python -m`.
        runpy.run_module(started.module, run_name="__main__", alter_sys=True)
