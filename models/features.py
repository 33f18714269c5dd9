"""The features of this server: what stands beside the core in a folder below `features/`.

The core never imports a feature. A process looks for its own part of each one, by the name of the
file (docs/architecture.md): `routes.py` and `web.py` in a web process, `worker.py` in a worker,
`commands.py` on the command line.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

FEATURES = (
    "backlog",
    "operator",
    "console",
    "search",
    "compact_and_count",
    "reference",
    "tenants",
    "quotas",
    "conversations",
    "files",
    "proxy",
    "model_list",
    "batches",
    "retrieval",
    "code",
    "images",
    "tool_search",
    "moderation",
    "steering",
    "websocket",
    "webhooks",
    "schedules",
    "retry",
    "messages",
    "cells",
)
"""A feature may use those before it. Without its line here, a feature is not there."""


def feature_parts(name: str) -> list[ModuleType]:
    """The modules `features/<feature>/<name>.py`, of each feature that has one, in the order of
    FEATURES. Imports them."""
    paths = (f"features.{feature}.{name}" for feature in FEATURES)
    return [import_module(path) for path in paths if find_spec(path) is not None]
