"""Reading a stream of a response only as far as a benchmark needs it."""

import time

_CREATED = b"event: response.created\n"
_DELTA = b"event: response.output_text.delta\n"
_ID = b'"id":"'
_TEXT = b'"delta":"'


class DeltaReader:
    """Counts the deltas of one stream and notes how long each was on its way.

    The paced upstream writes the time of sending into each delta (bench/paced_upstream.py).
    """

    __slots__ = ("_rest", "arrived_at", "id", "lags")

    def __init__(self) -> None:
        self.id = ""
        """The id of the response, once its first event has arrived."""
        self.arrived_at: list[float] = []
        """Monotonic time of arrival of each delta."""
        self.lags: list[float] = []
        """Seconds from the upstream's sending to the arrival."""
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Reads the next bytes of the stream."""
        now = time.monotonic()
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            if frame.startswith(_DELTA):
                start = frame.index(_TEXT) + len(_TEXT)
                sent_at = float(frame[start : frame.index(b" ", start)])
                self.arrived_at.append(now)
                self.lags.append(now - sent_at)
            elif frame.startswith(_CREATED):
                start = frame.index(_ID) + len(_ID)
                self.id = frame[start : frame.index(b'"', start)].decode()
