"""Names of functions that every chat upstream takes: at most 64 letters, digits, `_` and `-`, of
which the first is a letter or `_` (Gemini wants that), no two the same in one request.

Client tools (worker/translation/tool_catalog.py) and server tools
(worker/translation/items/server_tools.py) get theirs from here.
"""

import hashlib
import re

MAX_FUNCTION_NAME = 64
"""Characters."""

_HASH_LENGTH = 8
"""Hex digits that keep apart names which would otherwise be the same."""

_USABLE_NAME = re.compile(rf"[a-zA-Z_][a-zA-Z0-9_-]{{0,{MAX_FUNCTION_NAME - 1}}}")
_USABLE_START = re.compile(r"[a-zA-Z_]")
_UNUSABLE_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")


def is_usable_name(name: str) -> bool:
    """Whether an upstream takes this name unchanged."""
    return _USABLE_NAME.fullmatch(name) is not None


def usable_characters(name: str) -> str:
    """The name with `_` in the place of each character that upstreams refuse, and before a start
    that they refuse. Never empty."""
    usable = _UNUSABLE_CHARACTER.sub("_", name)
    return usable if _USABLE_START.match(usable) else f"_{usable}"


def with_hash(name: str, seed: str) -> str:
    """The name, cut to leave room for a hash of `seed`: 64 characters at most.

    The same seed always gives the same hash.
    """
    digest = hashlib.sha256(seed.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{name[: MAX_FUNCTION_NAME - _HASH_LENGTH - 1]}_{digest}"
