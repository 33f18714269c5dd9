"""Reading a stream in parts, and checking that no number is missing or repeated."""

import asyncio
import re
import time

from bench.http_client import Client

_NUMBER = re.compile(rb'"sequence_number":(\d+)')
_ID = re.compile(rb'"id":"(resp_[^"]+)"')
_TERMINAL = re.compile(rb"event: response\.(completed|incomplete|failed|cancelled)\n")


class NumberReader:
    """The numbers of all events of one response, over any number of connections."""

    def __init__(self) -> None:
        self.id = ""
        """The id of the response, once its first event has arrived."""
        self.numbers: list[int] = []
        self.has_ended = False
        """Whether the terminal event has arrived."""
        self.began_at = 0.0
        """Monotonic time of the first event on the last connection."""
        self._rest = b""
        self._enough = asyncio.Event()
        self._wanted: int | None = None

    async def read(self, client: Client, request: bytes, wanted: int | None) -> None:
        """Sends the request and reads its events: so many, then the connection is closed; or to the
        end of the reply."""
        self._rest, self.began_at = b"", 0.0
        self._enough.clear()
        self._wanted = None if wanted is None else len(self.numbers) + wanted
        connection = await client.connect()
        reading = asyncio.create_task(connection.send(request, self._feed))
        enough = asyncio.create_task(self._enough.wait())
        try:
            await asyncio.wait((reading, enough), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()  # raises RequestFailed
        finally:
            for task in (reading, enough):
                task.cancel()
            await asyncio.gather(reading, enough, return_exceptions=True)
            connection.close()

    def _feed(self, data: bytes) -> None:
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            number = _NUMBER.search(frame)
            if number is None or self._enough.is_set():
                continue
            self.began_at = self.began_at or time.monotonic()
            self._add(int(number[1]), frame)

    def _add(self, number: int, frame: bytes) -> None:
        self.numbers.append(number)
        if not self.id and (found := _ID.search(frame)):
            self.id = found[1].decode()
        self.has_ended = self.has_ended or _TERMINAL.match(frame) is not None
        if len(self.numbers) == self._wanted:
            self._enough.set()
