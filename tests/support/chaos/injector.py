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

from tests.support.chaos.proxy import Proxy, Snare, Statements, _Line

_SETUP = (b"SET ", b"BEGIN", b"ROLLBACK")
"""Statements that write nothing: an error of theirs teaches nothing about commits."""
_DONE_SHARE = 0.75


class Injector(Proxy):
    """A proxy before Postgres that loses answers, and sometimes statements, by the choice of `random`."""

    def __init__(self, dsn: str, chance: random.Random) -> None:
        """`chance` decides for each statement, in the order in which they come."""
        parts = urlsplit(dsn)
        assert parts.hostname is not None
        assert parts.port is not None
        super().__init__(parts.hostname, parts.port, Statements)
        self._chance = chance
        self.rate = 0.0
        """Share of the statements that are hit."""
        self.done_unheard = 0
        """How many were done, and their answer lost."""
        self.never_sent = 0
        """How many were lost on their way."""

    async def _ask(self, line: _Line, reader: asyncio.StreamReader) -> None:
        while data := await self._piece(reader):
            hit = [self._is_hit(request) for request in line.asked(data)]
            if any(hit):
                if self._chance.random() >= _DONE_SHARE:
                    self.never_sent += 1
                    line.abort()
                    return
                self.done_unheard += 1
                line.snare = Snare(b"")
                line.snare.lose()
            line.server.write(data)
            await line.server.drain()

    def _is_hit(self, statement: bytes) -> bool:
        return (
            self.rate > 0 and not statement.startswith(_SETUP) and self._chance.random() < self.rate
        )
