"""Which response an operator means by a text: its id, or the beginning of it."""

import re
from uuid import UUID

_MIN_PREFIX_LENGTH = 6


def id_prefix(name: str) -> str | None:
    """The hexadecimal digits of the beginning of an id; None if `name` is not one."""
    digits = name.replace("-", "").lower()
    return digits if re.fullmatch(rf"[0-9a-f]{{{_MIN_PREFIX_LENGTH},32}}", digits) else None


def id_range(name: str) -> dict[str, UUID] | None:
    """The parameters of `listing.RESPONSES_BY_PREFIX` for a response's id or the beginning of one;
    None if `name` is neither."""
    digits = id_prefix(name.removeprefix("resp_"))
    if digits is None:
        return None
    return {"first": UUID(digits.ljust(32, "0")), "last": UUID(digits.ljust(32, "f"))}
