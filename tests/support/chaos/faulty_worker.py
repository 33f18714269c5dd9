"""A worker with one bug: a named function of the product raises an error at one of its calls.

    python -m tests.support.chaos.faulty_worker worker.log.journal:Journal.write:7

The seventh call of `Journal.write` raises; all others do what they do. With `:kill` behind it this
call ends the process as `kill -9` does instead, with `:kill-after` when it has returned. The
product has no means for this. Everything else is the worker as `python -m worker` runs it, with its
further arguments.
"""

import asyncio
import functools
import importlib
import itertools
import os
import signal
import sys
from typing import Any

from worker.__main__ import main

INJECTED = "an injected error"
"""The text of the error."""


def inject(fault: str) -> None:
    """Replaces the function that `fault` names: `module:attribute:number of the call`, and if it is
    not `raise`, `:action`."""
    module, path, number, *actions = fault.split(":")
    *owners, name = path.split(".")
    owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
    function = getattr(owner, name)
    calls = itertools.count(1)
    action = actions[0] if actions else "raise"

    def is_faulty() -> bool:
        """Counts a call, which fails before it begins unless it fails at its end."""
        if next(calls) != int(number):
            return False
        if action == "raise":
            raise RuntimeError(INJECTED)
        if action == "kill":
            _kill()
        return True

    @functools.wraps(function)
    def faulty(*positional: Any, **keywords: Any) -> Any:
        dies = is_faulty()
        result = function(*positional, **keywords)
        if dies:
            _kill()
        return result

    @functools.wraps(function)
    async def faulty_coroutine(*positional: Any, **keywords: Any) -> Any:
        dies = is_faulty()
        result = await function(*positional, **keywords)
        if dies:
            _kill()
        return result

    is_coroutine = asyncio.iscoroutinefunction(function)
    setattr(owner, name, faulty_coroutine if is_coroutine else faulty)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    inject(sys.argv.pop(1))
    main()
