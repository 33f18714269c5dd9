"""What is wrong with a path without a route, where that can be known."""

from collections.abc import Collection

_PREFIX = "/v1"
_NOT_OFFERED = frozenset(
    (
        "assistants",
        "audio",
        "batches",
        "chatkit",
        "completions",
        "containers",
        "embeddings",
        "evals",
        "files",
        "fine_tuning",
        "images",
        "moderations",
        "organization",
        "realtime",
        "skills",
        "threads",
        "uploads",
        "vector_stores",
        "videos",
    )
)
"""The first segments, behind /v1, of OpenAI's other APIs."""


def path_hint(path: str, offered: Collection[str]) -> str:
    """A sentence with a space before it, or nothing.

    `offered`: the first segments, behind /v1, of this server's own routes.
    """
    segments = path.removeprefix(_PREFIX).split("/")
    first = segments[1] if len(segments) > 1 else ""
    if not path.startswith(f"{_PREFIX}/"):
        is_known = first in offered or first in _NOT_OFFERED
        return f" The API is at {_PREFIX}{path}: the base URL ends with {_PREFIX}." * is_known
    if first == _PREFIX[1:]:
        return f" The path has {_PREFIX} twice: the base URL ends with one."
    if first in _NOT_OFFERED and first not in offered:
        names = ", ".join(sorted(offered))
        return f" This server does not offer OpenAI's API at {_PREFIX}/{first}; it has: {names}."
    return ""
