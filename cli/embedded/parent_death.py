"""Makes a program end together with the process that starts it, then becomes that program.

Run as a script, by path: `python -I -S parent_death.py PARENT SIGNAL UID GID PROGRAM [ARGUMENT…]`.
Linux sends SIGNAL to the program when the parent's starting thread ends, for any reason; on other
systems the next start ends the program. UID and GID are the user to change to, or `-` for no
change. It is a script because `preexec_fn` is unsafe in a process with threads, and because the new
user may not be able to read the interpreter.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, signal_number: int, uid: str, gid: str, program: list[str]) -> None:
    """Replaces this process by `program`, an absolute path and its arguments. Does not return."""
    if uid != "-":
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    if sys.platform == "linux":
        # after the change of user, which clears the signal
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent has already ended")
    os.execv(program[0], program)  # noqa: S606 - this is its purpose


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
