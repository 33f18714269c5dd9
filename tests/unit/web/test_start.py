"""A web process that cannot start."""

import psycopg
import pytest

from models.config.settings import Settings
from models.ownership.lease import Lease
from web import state as web_state
from web.state import AppState


class _Pool:
    """Connects, and notes that it was closed."""

    is_closed = False

    async def open(self, *, wait: bool) -> None:
        assert wait

    async def close(self) -> None:
        self.is_closed = True


async def test_a_start_that_fails_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = _Pool()

    def lost(_lease: Lease) -> None:
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(web_state, "open_pool", lambda *_: pool)
    monkeypatch.setattr(Lease, "register", lost)
    settings = Settings(database_url="postgresql://unused", redis_url="redis://unused")
    with pytest.raises(psycopg.OperationalError):
        await AppState.open(settings, "127.0.0.1")
    assert pool.is_closed
