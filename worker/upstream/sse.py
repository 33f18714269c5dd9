"""An upstream's bytes in, the data of its server-sent events out (contract §7.2, "SSE oddities")."""

from models.errors import UpstreamFailed

_DONE = b"[DONE]"
_LINE_WEIGHT = 64
"""Bytes a line costs besides its text, so that an upstream cannot fill memory with short ones."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseSplitter:
    """Takes reads of any size and gives back whole payloads, not yet parsed.

    LF, CRLF and CR end a line, wherever a read was cut; comments and fields other than `data` are skipped; several data lines of
    one event are joined by LF. Bytes that begin with `{` or `[` are no stream but a JSON body, although a stream was asked: one payload,
    given when they end. Later a line that begins with `{` is a payload of its own, an error thrown into the stream. `[DONE]` is no
    payload: it sets `done`, and whatever follows it is ignored.
    """

    def __init__(self, *, limit: int) -> None:
        """`limit`: the most bytes one event may have, and so the most that is held here."""
        self._limit = limit
        self._line: list[bytes] = []
        """Pieces of a line whose end has not come yet."""
        self._line_size = 0
        self._data: list[bytes] = []
        """Data lines of an event whose end has not come yet."""
        self._data_size = 0
        self._is_stream = False
        """An event has been seen: this is a stream."""
        self._is_body = False
        self._after_cr = False
        """The last read ended in CR: an LF at the start of the next one is its other half, not an empty line."""
        self.done = False
        """The stream has said `[DONE]`."""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that these bytes complete."""
        if self.done or not data:
            return []
        payloads = self._whole_events(data)
        if payloads is None:
            payloads = self._read_lines(data)
        else:
            self._is_stream = True
        return self._until_done(payloads)

    def flush(self) -> list[bytes]:
        """The payload that was still open when the stream ended: many servers leave out the last empty line.

        One that was cut off in the middle is no payload: the stream ended early, which is for the translator to judge.
        """
        if self.done:
            return []
        payloads = self._until_done(self._end_line() + self._end_event())
        return [payload for payload in payloads if self._is_body or payload.rstrip().endswith(b"}")]

    def _whole_events(self, data: bytes) -> list[bytes] | None:
        """The ordinary read, taken in one step: whole events of one `data: ` line each. None when it is anything else."""
        if (
            self._line
            or self._data
            or self._after_cr
            or not data.startswith(b"data: ")
            or not data.endswith(b"\n\n")
            or b"\r" in data
        ):
            return None
        if len(data) > self._limit:
            return None
        events = (
            [data[6:-2]] if data.find(b"\n") == len(data) - 2 else data[6:-2].split(b"\n\ndata: ")
        )
        return events if data.count(b"\n") == 2 * len(events) and b"" not in events else None

    def _until_done(self, payloads: list[bytes]) -> list[bytes]:
        for position, payload in enumerate(payloads):
            if payload[:1] != b"{" and payload.strip() == _DONE:
                self.done = True
                return payloads[:position]
        return payloads

    def _read_lines(self, data: bytes) -> list[bytes]:
        if self._after_cr:
            data = data.removeprefix(b"\n")
        payloads: list[bytes] = []
        for line in data.splitlines(keepends=True):
            text = line.rstrip(b"\r\n")
            self._line.append(text)
            self._line_size += len(text)
            if self._line_size + self._data_size > self._limit:
                raise UpstreamFailed(
                    f"The upstream sent an event larger than {self._limit} bytes.",
                    reason="upstream_garbage",
                )
            if len(text) < len(line):
                payloads += self._end_line()
        self._after_cr = data.endswith(b"\r")
        return payloads

    def _end_line(self) -> list[bytes]:
        """Takes the line that was read; an empty one ends the event."""
        line = b"".join(self._line).removeprefix(_BYTE_ORDER_MARK)
        self._line, self._line_size = [], 0
        if self._is_body or (not self._is_stream and line.startswith((b"{", b"["))):
            self._is_body = True
            self._append_data(line)
        elif line.startswith(b"data:"):
            self._is_stream = True
            self._append_data(line[5:].removeprefix(b" "))
        elif line.startswith(b"{"):
            return [line]
        elif not line:
            return self._end_event()
        return []

    def _append_data(self, data: bytes) -> None:
        self._data.append(data)
        self._data_size += len(data) + _LINE_WEIGHT

    def _end_event(self) -> list[bytes]:
        payload = b"\n".join(self._data)
        self._data, self._data_size = [], 0
        return [payload] if payload else []
