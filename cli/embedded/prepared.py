"""`python -m cli.embedded.prepared MODULE [ARGUMENT…]`: imports what `python -m MODULE` needs,
waits for the end of standard input, and does then what `python -m MODULE` does.

So web and workers import their modules, which is most of their start, while the databases start and
are brought to this version's schema.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # imports free nothing, and collections are a sixth of their time

import importlib
import sys

from models.features import feature_parts

_PARTS = {"web": ("site", "web", "routes"), "worker": ("worker", "purge")}
"""The parts of features that such a process imports later (models/features.py)."""
_LATE_MODULES = {
    "web": (
        *("fastapi.openapi.utils", "uvicorn.lifespan.on", "uvicorn.loops.uvloop"),
        *("uvicorn.protocols.http.httptools_impl", "redis.asyncio"),
    ),
    "worker": (
        *("celery.apps.worker", "celery.bootsteps", "celery.worker.components"),
        *("celery.worker.consumer", "celery.worker.strategy", "celery.loaders.app"),
        *("celery.backends.base", "celery.fixups.django", "kombu.transport.redis", "redis.asyncio"),
        "worker.celery.pool",
    ),
}
"""What it imports when it has begun its work. A module that is missing here costs time, nothing
else."""


def main() -> None:
    """Runs the module of the command line. Its arguments are those behind its name."""
    module = sys.argv[1]
    program = importlib.import_module(f"{module}.__main__")
    for name in _LATE_MODULES[module]:
        importlib.import_module(name)
    for part in _PARTS[module]:
        feature_parts(part)
    sys.stdin.buffer.read()
    sys.argv = sys.argv[1:]
    program.main()


if __name__ == "__main__":
    main()
