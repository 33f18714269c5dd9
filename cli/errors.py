"""The errors that end a command with one sentence."""

import errno
from pathlib import Path

DISK_FULL = "No space left on device"
"""The system's text, which servers repeat in their messages."""
DISK_FULL_ERRORS = frozenset((errno.ENOSPC, errno.EDQUOT))


class CommandFailed(Exception):
    """A command cannot do its work. The message is one sentence for the operator."""


class RequestRefused(Exception):
    """There is no such response, process or key, or the request is impossible.

    The message is one sentence for the operator.
    """


def database_failure(error: Exception) -> CommandFailed:
    """The sentence for a database that could not be reached or refused the connection."""
    return CommandFailed(f"the database did not answer: {' '.join(str(error).split())}")


def disk_full(folder: Path) -> CommandFailed:
    """The sentence for a data folder whose disk is full."""
    return CommandFailed(
        f"the disk of {folder} is full: free 1 GB there, or name a folder elsewhere with --data"
    )
