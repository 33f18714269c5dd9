"""Ties a program's life to the process that starts it, then becomes that program.

Run as a script, by path: `python -I -S leash.py PARENT SIGNAL UID GID PROGRAM [ARGUMENT…]`. Linux sends SIGNAL to the program
when the parent's starting thread dies, however it dies; elsewhere the next start cleans up. UID and GID are numbers to drop
to, or `-` to stay who we are. A script of its own because `preexec_fn` is unsafe beside threads, and because the interpreter
may lie where the user we drop to cannot read it.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, signal_number: int, uid: str, gid: str, program: list[str]) -> None:
    """Does not return: the process goes on as `program`, an absolute path and its arguments."""
    if uid != "-":
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    if sys.platform == "linux":
        # after the change of user, which clears it
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent is gone already")
    os.execv(program[0], program)  # noqa: S606 - replacing this process is its whole purpose


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
