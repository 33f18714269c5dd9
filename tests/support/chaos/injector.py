"""A statement is done and its sender gets an error: replies of PostgreSQL are lost on the wire.

    injector = Injector(dsn, random.Random("7/worker-2"))
    injector.rate = 0.07            # share of the statements from now on; 0: an ordinary proxy
    injector.url(dsn)               # the DATABASE_URL of the process

Three in four of the statements that are hit reach PostgreSQL, and their reply is lost with the
connection. The others never reach it. The sender cannot see the difference.
"""

import asyncio
import random
from urllib.parse import urlsplit

from tests.support.chaos.interception import lost_answer
from tests.support.chaos.proxy import ProxiedConnection, Proxy
from tests.support.chaos.wire import Statements

_SETUP = (b"SET ", b"BEGIN", b"ROLLBACK")
"""Statements that write nothing: losing their reply tests no commit."""
_ANSWER_LOST_SHARE = 0.75


class Injector(Proxy):
    """A proxy before PostgreSQL that loses replies, and sometimes statements, at random."""

    def __init__(self, dsn: str, rng: random.Random) -> None:
        """`rng` decides for each statement, in the order in which they come."""
        parts = urlsplit(dsn)
        assert parts.hostname is not None
        assert parts.port is not None
        super().__init__(parts.hostname, parts.port, Statements)
        self._rng = rng
        self.rate = 0.0
        """Share of the statements that are hit."""
        self.answers_lost = 0
        """Number of statements that were done and whose reply was lost."""
        self.requests_lost = 0
        """Number of statements that never reached PostgreSQL."""

    async def _forward_requests(
        self, connection: ProxiedConnection, reader: asyncio.StreamReader
    ) -> None:
        while data := await self._read(reader):
            hits = [self._is_hit(request) for request in connection.parse_requests(data)]
            if any(hits):
                if self._rng.random() >= _ANSWER_LOST_SHARE:
                    self.requests_lost += 1
                    connection.abort()
                    return
                self.answers_lost += 1
                connection.held = lost_answer()
            connection.server.write(data)
            await connection.server.drain()

    def _is_hit(self, statement: bytes) -> bool:
        return self.rate > 0 and not statement.startswith(_SETUP) and self._rng.random() < self.rate
