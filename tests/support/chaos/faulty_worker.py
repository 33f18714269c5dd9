"""A worker with one bug: a named function of the product raises an error at one of its calls.

    python -m tests.support.chaos.faulty_worker worker.log.journal:Journal.write:7

The seventh call of `Journal.write` raises; all others do what they do. The product has no means for
this. Everything else is the worker as `python -m worker` runs it, with its further arguments.
"""

import asyncio
import functools
import importlib
import itertools
import sys
from typing import Any

from worker.__main__ import main

INJECTED = "an injected error"
"""The text of the error."""


def inject(fault: str) -> None:
    """Replaces the function that `fault` names: `module:attribute:number of the call`."""
    module, path, number = fault.split(":")
    *owners, name = path.split(".")
    owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
    function = getattr(owner, name)
    calls = itertools.count(1)

    def count() -> None:
        if next(calls) == int(number):
            raise RuntimeError(INJECTED)

    @functools.wraps(function)
    def faulty(*positional: Any, **keywords: Any) -> Any:
        count()
        return function(*positional, **keywords)

    @functools.wraps(function)
    async def faulty_coroutine(*positional: Any, **keywords: Any) -> Any:
        count()
        return await function(*positional, **keywords)

    is_coroutine = asyncio.iscoroutinefunction(function)
    setattr(owner, name, faulty_coroutine if is_coroutine else faulty)


if __name__ == "__main__":
    inject(sys.argv.pop(1))
    main()
