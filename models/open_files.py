"""The limit of open files of a process: each stream and each connection is one."""

import contextlib
import resource


def raise_open_file_limit() -> int:
    """Raises the soft limit of open files to the hard one, and returns the soft limit.

    Systems leave the soft limit low for programs that use `select`, which none of ours does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS refuses a limit without end
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft
