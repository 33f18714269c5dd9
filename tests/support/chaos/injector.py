"""Commit, then error: the statement happened, and whoever sent it sees a lost connection. On the wire, with nothing in the product.

    injector = Injector(dsn, random.Random("7/worker-2"))
    injector.rate = 0.07            # of the statements from now on; 0: it is an ordinary proxy
    injector.url(dsn)               # what the process is told as DATABASE_URL

Of the statements hit, three in four reach Postgres and are answered, but instead of the answer comes the end of the connection; the
rest never reach it. The caller cannot tell the two apart: that is the point.
"""

import asyncio
import random
from urllib.parse import urlsplit

from tests.support.chaos.proxy import HeldAnswer, Proxy, Statements, _ProxiedConnection

_SETUP = (b"SET ", b"BEGIN", b"ROLLBACK")
"""Statements that write nothing: an error of theirs teaches nothing about commits."""
_ANSWER_LOST_SHARE = 0.75


class Injector(Proxy):
    """A proxy before Postgres that loses answers, and sometimes statements, by the choice of `random`."""

    def __init__(self, dsn: str, rng: random.Random) -> None:
        """`chance` decides for each statement, in the order in which they come."""
        parts = urlsplit(dsn)
        assert parts.hostname is not None
        assert parts.port is not None
        super().__init__(parts.hostname, parts.port, Statements)
        self._rng = rng
        self.rate = 0.0
        """Share of the statements that are hit."""
        self.answers_lost = 0
        """How many were done, and their answer lost."""
        self.requests_lost = 0
        """How many were lost on their way."""

    async def _forward_requests(
        self, line: _ProxiedConnection, reader: asyncio.StreamReader
    ) -> None:
        while data := await self._read_piece(reader):
            hit = [self._is_hit(request) for request in line.parse_requests(data)]
            if any(hit):
                if self._rng.random() >= _ANSWER_LOST_SHARE:
                    self.requests_lost += 1
                    line.abort()
                    return
                self.answers_lost += 1
                line.held = HeldAnswer(b"")
                line.held.lose()
            line.server.write(data)
            await line.server.drain()

    def _is_hit(self, statement: bytes) -> bool:
        return self.rate > 0 and not statement.startswith(_SETUP) and self._rng.random() < self.rate
