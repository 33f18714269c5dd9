"""Which models a project and its keys may use."""

import re
from collections.abc import Iterable
from functools import lru_cache


@lru_cache(4096)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def may_use(model: str, *allowed: Iterable[str] | None) -> bool:
    """Whether each of these lists of names and patterns has the model. None: all models."""
    return all(
        names is None or any(_expression(name).fullmatch(model) for name in names)
        for names in allowed
    )
