"""Which process of pytest gets which file, so that few of them start the shared deployments.

A deployment that only waits takes a twentieth of a core, and its start three seconds of one.
"""

import functools
import re
from pathlib import Path

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

_TOOL_STACK = re.compile(r"\btool_stack\b")
_SHARED_STACK = re.compile(r"\bshared_stack\b|\bapi: Api\b|\bclient: openai\.AsyncOpenAI\b")
_PREFERRED = {"gw0": ("tool", "shared", "own"), "gw1": ("shared", "own", "tool")}
"""Process -> the kinds of files in the order in which it takes them."""
_PREFERRED_BY_OTHERS = ("own", "shared", "tool")


@functools.cache
def _kind(file: str) -> str:
    """What a file's tests need: the deployment with tools, the shared one, none of them; `unit`
    for unit tests. A wrong answer costs time, nothing else."""
    if file.startswith("tests/unit/"):
        return "unit"
    text = Path(file).read_text()
    if _TOOL_STACK.search(text):
        return "tool"
    return "shared" if _SHARED_STACK.search(text) else "own"


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each process the first file of the kind that it prefers. Unit tests come last: many
    small files keep all processes busy to the end."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        kinds = (*_PREFERRED.get(node.gateway.id, _PREFERRED_BY_OTHERS), "unit")
        first = min(self.workqueue, key=lambda file: kinds.index(_kind(file)))
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)
