"""gVisor's `runsc` as the wall around a process of a session: a kernel of its own, in a program.

Each process of a session gets a container without network, which sees Python, the system's programs
and the session's folders. It ends with the `runsc` that started it.
"""

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from features.code.sandbox.walls import SYSTEM

_ROOT = Path(__file__).parents[3]
_SOURCES = ("features", "models")


def command(folder: Path, python: str, arguments: list[str], env: dict[str, str]) -> list[str]:
    """The command that runs `python` with these arguments in a container. `folder`: the session's.
    Its `gvisor` gets what `runsc` needs, where code cannot see it. Raises OSError without runsc."""
    runsc, setpriv = shutil.which("runsc"), shutil.which("setpriv")
    if runsc is None or setpriv is None:
        raise FileNotFoundError("there is no runsc, or no setpriv")
    name = secrets.token_hex(8)
    bundle = folder / "gvisor" / name
    (bundle / "root").mkdir(parents=True)
    config = _config(folder, python, [python, *arguments], env)
    (bundle / "config.json").write_text(json.dumps(config))
    return [
        *(setpriv, "--pdeathsig", "KILL"),
        *(runsc, f"--root={folder}/gvisor/state", "--network=none", "--ignore-cgroups"),
        *([] if os.geteuid() == 0 else ["--rootless"]),
        *("run", f"--bundle={bundle}", name),
    ]


def _config(folder: Path, python: str, args: list[str], env: dict[str, str]) -> dict[str, Any]:
    """A bundle's configuration as the OCI runtime specification has it."""
    pythons = (Path(python).parents[1], Path(python).resolve().parents[1])
    readable = [*SYSTEM, *map(str, pythons), *(str(_ROOT / each) for each in _SOURCES)]
    writable = {"/mnt/data": folder / "data"}
    writable |= {str(folder / name): folder / name for name in ("tmp", "out")}
    return {
        "ociVersion": "1.0.0",
        "hostname": "session",
        "root": {"path": "root", "readonly": True},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": args,
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": "/",
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            *(_bind(path, path, "ro") for path in dict.fromkeys(readable) if Path(path).exists()),
            *(_bind(path, str(source), "rw") for path, source in writable.items()),
        ],
        "linux": {
            "namespaces": [{"type": each} for each in ("pid", "network", "ipc", "uts", "mount")]
        },
    }


def _bind(path: str, source: str, mode: str) -> dict[str, Any]:
    source = os.path.realpath(source)
    return {"destination": path, "type": "bind", "source": source, "options": ["rbind", mode]}
