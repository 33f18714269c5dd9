"""What requests with an API key may do (docs/projects.md)."""

from collections.abc import Collection
from enum import StrEnum


class Scope(StrEnum):
    """One of the scopes of a key."""

    RESPONSES = "responses"
    """Everything of its project."""
    READ = "read"
    """Only requests that change nothing."""
    FILES = "files"
    """The files of its project, their uploads and vector stores; its batches may only be read."""
    CONSOLE = "console"
    """A login to the console that shows its project; nothing of the API."""
    ADMIN = "admin"
    """The projects, keys and usage of the whole server; nothing of a project."""


DEFAULT_SCOPES = frozenset((Scope.RESPONSES,))
"""Of a key that is made without any."""


def parse_scopes(names: Collection[str]) -> frozenset[Scope]:
    """The scopes of these names. Names of a later release are left out: they allow nothing here."""
    return frozenset(scope for scope in Scope if scope in names)
