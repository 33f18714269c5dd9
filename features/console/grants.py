"""Permission to see the input and output of one response, which lasts some minutes.

It is made by a POST that the audit log records, and is part of the page's URL, so that the page can
be loaded again. Only the session that has it can use it.
"""

import hmac
import time
from uuid import UUID

from features.console.access import Session, derived_token

_LIFETIME = 600
"""Seconds."""


def make(session: Session, response: UUID) -> str:
    """A grant for this session and response."""
    until = int(time.time()) + _LIFETIME
    return f"{until}.{_seal(session, response, until)}"


def is_valid(session: Session, response: UUID, grant: str) -> bool:
    """Whether it was made for this session and response, and has not expired."""
    until, _, seal = grant.partition(".")
    if not until.isascii() or not until.isdigit() or int(until) < time.time():
        return False
    wanted = _seal(session, response, int(until))
    return session.may_act and hmac.compare_digest(seal.encode(), wanted.encode())


def _seal(session: Session, response: UUID, until: int) -> str:
    return derived_token(session.token, f"content {response.hex} {until}")
