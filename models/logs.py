"""Logging: one JSON object per line on standard error, with a constant event name and fields.

Keys, input and output are never logged. docs/operations.md, "Logs", lists the fields of the lines
about requests and responses.
"""

import asyncio
import atexit
import io
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import orjson
import structlog

_FLUSH_DELAY = 0.05
"""Seconds that a line about a request or a response waits for others."""
_MAX_WAITING = 64 * 1024
"""Bytes of waiting lines that are written at once."""
_HIDDEN = "…".encode()
"""In the place of a secret."""
_LEVELS = logging.getLevelNamesMapping()
_JSON_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE


class _Log:
    """The log of this process: lines on a file descriptor, in the order in which they are given.

    A line that cannot be written is dropped, because the disk is full or nobody reads the pipe: a
    server whose log is lost still serves. Callable in all threads, and while a signal is handled.
    """

    def __init__(self, descriptor: int) -> None:
        self.level = logging.INFO
        self.fields: dict[str, object] = {}
        """Fields of every line."""
        self.secrets: tuple[bytes, ...] = ()
        """Texts that no line shows, as JSON writes them."""
        self._descriptor = descriptor
        self._lock = threading.RLock()
        self._waiting: list[bytes] = []
        self._size = 0

    def write(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        """Writes a line at once, behind those that wait, and without secrets: the message of an
        error may hold an address with its query."""
        line = self._encode(level, event, fields)
        for secret in self.secrets:
            line = line.replace(secret, _HIDDEN)
        with self._lock:
            self._waiting.append(line)
            self.flush()

    def write_soon(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        """Writes a line together with others: after 50 ms if an event loop runs in this thread,
        else at once."""
        line = self._encode(level, event, fields)
        with self._lock:
            is_first = not self._waiting
            self._waiting.append(line)
            self._size += len(line)
            if self._size > _MAX_WAITING:
                self.flush()
            elif is_first:
                try:
                    asyncio.get_running_loop().call_later(_FLUSH_DELAY, self.flush)
                except RuntimeError:  # no event loop runs here
                    self.flush()

    def flush(self) -> None:
        """Writes the lines that wait."""
        with self._lock:
            data, self._waiting, self._size = b"".join(self._waiting), [], 0
            with suppress(OSError):  # the line is dropped
                while data:
                    data = data[os.write(self._descriptor, data) :]

    def _encode(self, level: str, event: str, fields: Mapping[str, object]) -> bytes:
        line: dict[str, object]
        line = {"timestamp": datetime.now(UTC), "level": level, "event": event, **self.fields}
        line |= fields
        try:
            return orjson.dumps(line, default=str, option=_JSON_OPTIONS)
        except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits
            line["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            return json.dumps(line, default=str).encode() + b"\n"


_log = _Log(2)


def configure(level: str, **fields: object) -> None:
    """Makes all loggers write JSON lines with these `fields`, unless their level is lower."""
    _log.level = _LEVELS[level.upper()]
    _log.fields = fields
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_log.level),
        logger_factory=lambda *_: _EventLogger(),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=max(_log.level, logging.INFO), handlers=[_RecordHandler()], force=True
    )
    logging.captureWarnings(capture=True)
    for chatty in ("botocore", "celery", "httpx", "httpx2", "httpcore2", "openai", "kombu", "amqp"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # the MCP client logs what servers send, with tracebacks; the response reports these errors
    logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut_stream)
    atexit.register(_log.flush)


def _is_no_cut_stream(record: logging.LogRecord) -> bool:
    """False for uvicorn's error about a stream that ends without its end. Such a stream must not
    look complete, and web/stream/sse.py has logged why it was cut."""
    return record.getMessage() != "ASGI callable returned without completing response."


def hide(secrets: Collection[str]) -> None:
    """These texts appear in no line. Lines of `write_line`, whose fields are names, numbers and
    ids, are not searched."""
    spellings = {orjson.dumps(secret)[1:-1] for secret in secrets}
    spellings |= {json.dumps(secret)[1:-1].encode() for secret in secrets}
    _log.secrets = tuple(sorted(spellings, key=len, reverse=True))


def capture_output() -> None:
    """Makes what this process prints, and the errors that no code catches, lines of its log too.

    Does not change what a terminal shows. The last words of C code stay as they are: they come
    while the process crashes.
    """
    _log_uncaught_errors()
    if not sys.stderr.isatty():
        sys.stdout, sys.stderr = _PrintedLines("stdout", 1), _PrintedLines("stderr", 2)


def write_line(event: str, fields: Mapping[str, object], *, level: str = "info") -> None:
    """Writes a line about a request or a response, with exactly these fields: what is bound to the
    context is not added.

    It costs a few microseconds, and the line is written within 50 ms: `kill -9` may lose it.
    """
    if is_written(level):
        _log.write_soon(level, event, fields)


def write_at_once(event: str, fields: Mapping[str, object], *, level: str) -> None:
    """Writes a line with exactly these fields, also before `configure`."""
    _log.write(level, event, fields)


def is_written(level: str) -> bool:
    """Whether lines of this level are written."""
    return _LEVELS[level.upper()] >= _log.level


class _EventLogger:
    """What structlog calls with the fields of an event, at a level that is written."""

    def _write(self, *, event: str, level: str, **fields: object) -> None:
        _log.write(level, event, fields)

    debug = info = warning = error = critical = exception = fatal = msg = _write


class _RecordHandler(logging.Handler):
    """Writes the records of uvicorn's, Celery's and other libraries' loggers."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        fields = {**structlog.contextvars.get_contextvars(), "logger": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = _format(record.exc_info[1])
        try:
            message = record.getMessage().rstrip()
        except (TypeError, ValueError):  # the arguments do not fit the message
            message = str(record.msg)
        _log.write(record.levelname.lower(), message, fields)


class _PrintedLines(io.TextIOBase):
    """In the place of `sys.stdout` or `sys.stderr`: each printed line becomes a line of the log."""

    def __init__(self, stream: str, descriptor: int) -> None:
        self._stream = stream
        self._descriptor = descriptor
        self._rest = ""

    def fileno(self) -> int:
        """The file descriptor of the stream, which child processes inherit."""
        return self._descriptor

    def writable(self) -> bool:
        """It is for writing."""
        return True

    def write(self, text: str) -> int:
        """Logs the lines that are complete."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            _log.write("warning", "printed", {"stream": self._stream, "text": line})
        return len(text)


def _log_uncaught_errors() -> None:
    """Logs errors that no code catches: of the main thread, of others, and of finalizers."""

    def on_error(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
        _log.write("critical", "process_failed", {"exception": _format(error)})

    def on_thread_error(failure: threading.ExceptHookArgs) -> None:
        if failure.exc_value is not None:
            thread = failure.thread.name if failure.thread is not None else None
            fields = {"thread": thread, "exception": _format(failure.exc_value)}
            _log.write("error", "thread_failed", fields)

    def on_unraisable(failure: Any) -> None:
        error = failure.exc_value
        fields = {"where": repr(failure.object), "exception": error and _format(error)}
        _log.write("error", "error_ignored", fields)

    sys.excepthook = on_error
    threading.excepthook = on_thread_error
    sys.unraisablehook = on_unraisable


def _format(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()
