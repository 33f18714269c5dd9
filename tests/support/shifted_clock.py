"""Runs a module as a program on a machine whose clock is wrong:

python -m tests.support.shifted_clock SECONDS MODULE [ARGUMENT...]
"""

import runpy
import sys
import time

if __name__ == "__main__":
    _, seconds, module, *arguments = sys.argv
    shift, clock, clock_ns = int(seconds), time.time, time.time_ns
    time.time = lambda: clock() + shift
    time.time_ns = lambda: clock_ns() + shift * 1_000_000_000
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
