"""Loses the reply to one statement of PostgreSQL, or the statement itself."""

import pytest

from tests.support.chaos.proxy import Proxy

DONE, NEVER = "done", "never"
both_kinds = pytest.mark.parametrize("kind", [DONE, NEVER])
"""The statement took effect and its reply is lost, or the statement never arrived."""
FREQUENT_SWEEPS = {
    "BACKBURNER_LEASE__BEAT": "0.5",
    "BACKBURNER_LEASE__SWEEP": "0.5",
    "BACKBURNER_LEASE__ENQUEUE_INTERVAL": "1",
}
"""The leases have their default length: no process is declared dead."""


def lose_reply(proxy: Proxy, pattern: bytes, kind: str) -> None:
    """The sender of the next statement with this pattern gets no reply."""
    if kind == DONE:
        proxy.hold_answer(pattern).lose()
    else:
        proxy.drop_request(pattern)
