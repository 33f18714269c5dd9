"""Reads a file's text in a process of its own, because it may be hostile (docs/file-kinds.md)."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePath
from typing import IO

import structlog

from features.retrieval.extract.child_protocol import (
    DAMAGED,
    END,
    HEAD,
    PIECE,
    SERVER,
    TEXT,
    TIME,
    ExtractionFailed,
    ExtractionLimits,
    decode_failure,
)
from models.config.feature_groups import ExtractionSettings
from models.uncancellable import run_uncancellable

logger = structlog.get_logger()

_CHILD = "features.retrieval.extract.child"
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE))
"""What ends a process whose libraries the file has confused."""
_END_TIME = 5.0
"""Seconds from the end of the output to the end of the process."""
_ERROR_BYTES = 64 * 1024


def limits_of(settings: ExtractionSettings) -> ExtractionLimits:
    """The limits that an operator has set."""
    return ExtractionLimits(
        memory=settings.memory,
        cpu_time=settings.cpu_time.total_seconds(),
        time=settings.time.total_seconds(),
        text=settings.text,
        unpacked=settings.unpacked,
    )


@asynccontextmanager
async def extract(
    file: IO[bytes], filename: str, limits: ExtractionLimits
) -> AsyncIterator[AsyncIterator[str]]:
    """The text of an open file, as an iterator of pieces of at most 64 KiB in UTF-8:

        async with extract(file, "report.pdf", limits) as pieces:
            async for piece in pieces:
                ...

    The file is read from its present place on, by its descriptor, as fast as the caller takes the
    pieces. The pieces joined are the text, the same in each run; where a piece ends has no meaning.
    No piece has U+0000. `filename` is a hint: the bytes decide what the file is. The process has
    ended when the block is left, also by an error or a cancellation. It ends with this process,
    too.

    The iterator raises ExtractionFailed, and logs its cause. A file without any text is a failure,
    so at least one piece comes before the end.
    """
    try:
        # In the event loop, because the kernel ends the process with the thread that has started
        # it. It takes less than a millisecond: this process is not copied (vfork).
        process, errors = _spawn(file, filename, limits)
    except OSError as error:
        raise _logged(ExtractionFailed("server_error", SERVER, str(error))) from None
    try:
        with errors:
            async with _connect(process) as output:
                yield _Reading(process, output, errors, limits).pieces()
    finally:
        _kill(process)
        await run_uncancellable(asyncio.to_thread(process.wait))


def _spawn(
    file: IO[bytes], filename: str, limits: ExtractionLimits
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Starts the process, and the file that has its standard error. Raises OSError."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        process = subprocess.Popen(
            [
                sys.executable,
                *("-S", "-B", "-P", "-X", "utf8", "-m", _CHILD),
                limits.encode(),
                PurePath(filename.replace("\0", "")).suffix.lower()[:16],
                str(os.getpid()),
            ],
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
            env=_environment(),
            # A group, not a session: in a session of its own Linux would schedule it as the
            # equal of the worker, whatever its priority.
            process_group=0,
        )
    except BaseException:
        errors.close()
        raise
    return process, errors


def _environment() -> dict[str, str]:
    """Nothing of this process's environment, which has keys and passwords."""
    return {
        # `-S` leaves site-packages out: its start-up files take more time than the interpreter.
        "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path),
        # A second run over a file gives the same text.
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C.UTF-8",
    }


@asynccontextmanager
async def _connect(process: subprocess.Popen[bytes]) -> AsyncIterator[asyncio.StreamReader]:
    """The standard output of the process. At most two pieces are read ahead."""
    output = asyncio.StreamReader(limit=PIECE)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), process.stdout
    )
    try:
        yield output
    finally:
        transport.close()


class _Reading:
    """Takes the frames of one process."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        output: asyncio.StreamReader,
        errors: IO[bytes],
        limits: ExtractionLimits,
    ) -> None:
        self._process = process
        self._output = output
        self._errors = errors
        self._seconds_left = limits.time
        self._text_left = limits.text

    async def pieces(self) -> AsyncIterator[str]:
        """The text. Raises ExtractionFailed."""
        try:
            while (piece := await self._next()) is not None:
                yield piece
        except ExtractionFailed as failure:
            raise _logged(failure) from None

    async def _next(self) -> str | None:
        """The next piece; None at the end of the text. Raises ExtractionFailed."""
        kind, length = HEAD.unpack(await self._receive(HEAD.size))
        if length > PIECE:
            raise ExtractionFailed("server_error", SERVER, f"a frame of {length} bytes")
        body = await self._receive(length)
        if kind == TEXT:
            # The process keeps this limit too, unless the file has taken it over.
            self._text_left -= max(length, 1)
            if self._text_left < 0:
                raise ExtractionFailed("invalid_file", DAMAGED, "more text than the limit")
            return body.decode(errors="replace")
        if kind == END:
            return None
        raise decode_failure(body)

    async def _receive(self, count: int) -> bytes:
        """The next bytes. Raises ExtractionFailed."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._seconds_left):
                return await self._output.readexactly(count)
        except TimeoutError:
            raise ExtractionFailed("invalid_file", TIME, "the time limit") from None
        except asyncio.IncompleteReadError:
            raise await asyncio.to_thread(self._explain_end) from None
        finally:
            self._seconds_left -= time.monotonic() - began

    def _explain_end(self) -> ExtractionFailed:
        """Why the output has ended without a last frame. Waits for the end of the process."""
        try:
            status = self._process.wait(_END_TIME)
        except subprocess.TimeoutExpired:
            return ExtractionFailed("server_error", SERVER, "it closed its output")
        if status == -signal.SIGXCPU:
            return ExtractionFailed("invalid_file", TIME, "the limit of CPU time")
        if -status in _CRASHES:
            return ExtractionFailed("invalid_file", DAMAGED, f"signal {-status}")
        self._errors.seek(0)
        lines = self._errors.read(_ERROR_BYTES).decode(errors="replace").strip().splitlines()
        return ExtractionFailed(
            "server_error", SERVER, f"exit status {status}: {lines[-1] if lines else ''}"
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process, and what it may have started. It is not reaped yet, so that its number is
    still its own."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _logged(failure: ExtractionFailed) -> ExtractionFailed:
    log = logger.error if failure.code == "server_error" else logger.info
    log("extraction_failed", code=failure.code, reason=failure.message, cause=failure.cause)
    return failure
