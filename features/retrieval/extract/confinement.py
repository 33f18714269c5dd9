"""What the process that reads a file may do: compute, and read the code that it imports."""

import math
import os
import sys
from importlib.util import find_spec

from features.retrieval.extract.limits import ExtractionLimits
from models.confinement.policy import Policy, confine

_OPEN_FILES = 64
_OWN = ("features", "models")
_LIBRARIES = ("pypdf", "defusedxml")
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
"""Libraries in C that modules of Python use."""


def confine_reader(limits: ExtractionLimits, parent: int) -> None:
    """Confines this process for good. Ends it if `parent`, a process, has already ended. Raises
    OSError."""
    policy = Policy(
        memory=limits.memory,
        cpu_seconds=math.ceil(limits.cpu_time),
        open_files=_OPEN_FILES,
        readable=(*_code(), *_SYSTEM),
    )
    confine(policy, parent)


def _code() -> set[str]:
    """Folders with code. Of our own packages only these themselves: what is beside them may be
    files and keys, in a checkout. Beside a library are those that it needs."""
    standard = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib takes longer to import
    folders = {standard, f"{sys.base_exec_prefix}/{sys.platlibdir}"}
    for name in (*_OWN, *_LIBRARIES):
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            folder = spec.submodule_search_locations[0]
            folders.add(folder if name in _OWN else os.path.dirname(folder))  # noqa: PTH120
    return folders
