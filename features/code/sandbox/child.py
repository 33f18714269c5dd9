"""A process of a session: `python -I child.py ROOT`, told what to do by a first line of JSON on
standard input (`Order`).

It gives up what it may (walls.py). Then it becomes a shell that runs one command, or it runs cells,
one after the other, in one namespace: a line of standard input is a cell, a line on the descriptor
`channel` its result. A thread with a table of descriptors of its own reads and writes them: in that
of the code, its threads and children they are not. What code prints goes to files, which the server
reads, as it measures all else.
"""

import ast
import contextlib
import json
import os
import resource
import signal
import sys
import traceback
from _thread import start_new_thread
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypedDict

_TEXT = 256 * 1024
_OPEN_FILES = 256


class Order(TypedDict):
    """What a process is for."""

    folder: str
    """The session's."""
    has_mounts: bool
    """Whether its data is mounted at /mnt/data."""
    parent: int | None
    """None: it is in a container of gVisor."""
    channel: int
    handover: int | None
    """A socket on which the sandbox gets the listener for calls of `socket` (sockets.py); None: the
    code has no network."""
    readable: tuple[str, ...]
    """What it reads besides Python and the system's programs."""
    memory: int
    """Bytes of address space."""
    file_bytes: int
    processes: int
    cpu_seconds: int
    command: str | None
    """None: it runs cells."""


def main(root: str) -> None:
    """Does what the order says. Cells: until standard input ends."""
    sys.path.insert(0, root)
    from features.code.sandbox.walls import confine, mount_data, restrict_calls, unshare_files

    # Code may have modules of these names.
    sys.path.remove(root)
    for name in [each for each in sys.modules if each.split(".")[0] in ("features", "models")]:
        del sys.modules[name]
    cells = os.fdopen(os.dup(0), "rb", buffering=0)
    order: Order = json.loads(_line(cells))
    channel = order["channel"]
    if channel == 1:
        channel = os.dup(1)
    os.set_inheritable(channel, False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    folder = order["folder"]
    limits = {
        resource.RLIMIT_AS: order["memory"],
        resource.RLIMIT_FSIZE: order["file_bytes"],
        resource.RLIMIT_NPROC: order["processes"],
        resource.RLIMIT_CPU: order["cpu_seconds"],
        resource.RLIMIT_CORE: 0,
    }
    readable = (*{sys.prefix, sys.base_prefix, sys.exec_prefix}, *order["readable"])
    is_gvisor = order["parent"] is None
    if order["has_mounts"] and not is_gvisor:
        mount_data(folder)
    confine(folder, readable, limits, order["parent"])
    os.chdir("/mnt/data" if order["has_mounts"] else f"{folder}/data")
    handover = order["handover"]

    def restrict_code() -> None:
        _hand_over(restrict_calls(is_gvisor, has_hosts=handover is not None), handover)
        # Not before: descriptors that other sessions of this user are sending count too.
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))

    if order["command"] is not None:
        restrict_code()
        _redirect(f"{folder}/out")
        os.write(channel, b"{}\n")
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        os.execv(shell, [shell, "-c", order["command"]])  # noqa: S606 - this is its purpose
    sys.argv = [""]
    scope: dict[str, Any] = {"__name__": "__main__"}
    given, answers = _talk(cells, channel, lambda: restrict_calls(is_gvisor))
    restrict_code()
    unshare_files()
    answers.put("{}")
    while line := given.get():
        cell = json.loads(line)
        _reap()
        _redirect(f"{folder}/out")
        result = _run(cell["code"], scope) | {"nonce": cell["nonce"]}
        if is_gvisor:
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)
        answers.put(json.dumps(result))


def _hand_over(listener: int | None, handover: int | None) -> None:
    """Code must not have the listener: who answers a call may let it pass."""
    if listener is None:
        return
    import socket

    with socket.socket(fileno=handover) as sandbox:
        socket.send_fds(sandbox, [b"."], [listener])
    os.close(listener)


def _talk(
    cells: Any, channel: int, restrict_calls: Callable[[], object]
) -> tuple["SimpleQueue[bytes]", "SimpleQueue[str]"]:
    """Begins to read a cell after each answer, in a thread that modules of Python do not count
    among those of the code."""
    given: SimpleQueue[bytes] = SimpleQueue()
    answers: SimpleQueue[str] = SimpleQueue()

    def talk() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        restrict_calls()
        results = os.fdopen(channel, "w", closefd=False)
        while True:
            print(answers.get(), file=results, flush=True)
            given.put(_line(cells))

    start_new_thread(talk, ())
    return given, answers


def _line(file: Any) -> bytes:
    return bytes(file.readline())


def _reap() -> None:
    """Killed children of earlier cells count as processes until somebody asks for them."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _redirect(out: str) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{out}/{name}", os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)


def _run(code: str, scope: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"status": "ok", "value": "", "error": ""}
    try:
        result["value"] = _unicode(_python(code, scope))
    except KeyboardInterrupt:
        result["status"] = "interrupted"
    except MemoryError:
        result |= {"status": "memory", "error": "MemoryError"}
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its result
        lines = traceback.format_exception(type(error), error, _own_frames(error))
        result |= {"status": "error", "error": _unicode("".join(lines)[-_TEXT:])}
    with contextlib.suppress(BaseException):
        result["figures"] = _save_figures()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    return result


def _python(code: str, scope: dict[str, Any]) -> str:
    """Runs the code; returns what its last expression is."""
    tree = ast.parse(code, "<cell>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), scope)  # noqa: S102 - this is what it is for
    if not isinstance(last, ast.Expr):
        return ""
    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)  # noqa: S307
    return "" if value is None else repr(value)[:_TEXT]


def _unicode(text: str) -> str:
    return text.encode(errors="replace").decode()


def _own_frames(error: BaseException) -> Any:
    """The traceback from the code's first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != "<cell>":
        trace = trace.tb_next
    return trace


def _save_figures() -> list[str]:
    """Saves the open figures of matplotlib; returns the names of the files."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    names: list[str] = []
    if pyplot is None:
        return names
    for number in pyplot.get_fignums():
        taken = len(list(Path().glob("figure-*.png")))
        names.append(f"figure-{taken + 1}.png")
        pyplot.figure(number).savefig(names[-1])
    pyplot.close("all")
    return names


if __name__ == "__main__":
    main(sys.argv[1])
