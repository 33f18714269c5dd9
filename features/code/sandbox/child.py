"""The process of a session: `python -I child.py ROOT FOLDER MEMORY FILE_BYTES
PROCESSES PARENT CHANNEL`.

It gives up what it may (walls.py), then runs cells, one after the other, in one namespace. A line
of standard input is a cell, a line on the descriptor CHANNEL its result. What code prints goes to
files of the session, which the server reads: a result that code forges says nothing about anything
else.
"""

import ast
import contextlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

_TEXT = 256 * 1024


def main(root: str, folder: str, *numbers: str) -> None:
    """Runs cells until standard input ends."""
    sys.path.insert(0, root)
    from features.code.sandbox.walls import confine

    sys.path.remove(root)
    memory, file_bytes, processes, parent, channel = map(int, numbers)
    cells, results = os.fdopen(os.dup(0)), os.fdopen(channel, "w")
    os.set_inheritable(results.fileno(), False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    readable = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix})
    limits = {"memory": memory, "file_bytes": file_bytes, "processes": processes}
    confine(folder, readable, parent=parent, **limits)
    os.chdir(f"{folder}/data")
    sys.argv = [""]
    scope: dict[str, Any] = {"__name__": "__main__"}
    print(json.dumps({"ready": True}), file=results, flush=True)
    for line in cells:
        cell = json.loads(line)
        result = _run(cell, scope, f"{folder}/out") | {"nonce": cell["nonce"]}
        print(json.dumps(result), file=results, flush=True)


def _run(cell: dict[str, Any], scope: dict[str, Any], out: str) -> dict[str, Any]:
    for number, name in ((1, "stdout"), (2, "stderr")):
        _redirect(number, f"{out}/{name}")
    result: dict[str, Any] = {"status": "ok", "value": "", "error": "", "outputs": []}
    try:
        if cell["kind"] == "shell":
            result["outputs"] = [_command(each, cell) for each in cell["commands"]]
        else:
            result["value"] = _python(cell["code"], scope)
    except KeyboardInterrupt:
        result["status"] = "interrupted"
    except MemoryError:
        result |= {"status": "memory", "error": "MemoryError"}
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its result
        lines = traceback.format_exception(type(error), error, _own_frames(error))
        result |= {"status": "error", "error": "".join(lines)[-_TEXT:]}
    with contextlib.suppress(BaseException):
        result["figures"] = _save_figures()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    return result


def _redirect(number: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, number)
    os.close(file)


def _python(code: str, scope: dict[str, Any]) -> str:
    """Runs the code; returns what its last expression is."""
    tree = ast.parse(code, "<cell>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), scope)  # noqa: S102 - this is what it is for
    if not isinstance(last, ast.Expr):
        return ""
    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)  # noqa: S307
    return "" if value is None else repr(value)[:_TEXT]


def _own_frames(error: BaseException) -> Any:
    """The traceback from the code's first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != "<cell>":
        trace = trace.tb_next
    return trace


def _command(command: str, cell: dict[str, Any]) -> dict[str, Any]:
    """Runs a command line; its texts are cut to `max_output_length` characters each."""
    limit = cell.get("max_output_length") or _TEXT
    seconds = cell["timeout_ms"] / 1000 if cell.get("timeout_ms") else None
    try:
        ran = subprocess.run(
            ["/bin/sh", "-c", command], capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as stopped:
        texts, code = (stopped.stdout or b"", stopped.stderr or b""), None
    else:
        texts, code = (ran.stdout, ran.stderr), ran.returncode
    out, err = (text.decode(errors="replace")[:limit] for text in texts)
    return {"stdout": out, "stderr": err, "exit_code": code}


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
    main(*sys.argv[1:])
