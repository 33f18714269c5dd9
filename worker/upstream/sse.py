"""The bytes of an upstream's stream become the payloads of its server-sent events."""

import json

from models.errors import UpstreamFailed

_DONE = b"[DONE]"
_LINE_WEIGHT = 64
"""Bytes that a line counts besides its text, so that an upstream cannot fill memory with short
lines."""
_MAX_TEXT = 4096
"""Bytes of a text that is neither a stream nor JSON: the rest is dropped."""
_FIELDS = (b"", b"data", b"id", b"retry", b"event")
"""Fields of an event; a comment has no name."""
_ERROR_EVENTS = (b"error", b"exception")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseSplitter:
    """Takes reads of any size and returns whole payloads, not yet parsed.

    LF, CRLF and CR end a line, wherever a read was cut. Comments and fields other than `data` are
    skipped. Several data lines of one event are joined by LF, but whole objects are payloads of
    their own. If the bytes begin with `{` or `[`,
    they are no stream but a JSON body: one payload, returned when they end. Later in a stream, a
    line that begins with `{` is a payload alone: an error between the events. `[DONE]` is no
    payload: it sets `done`, and everything after it is ignored.

    The data of an `error` event, and the field `error` (llama.cpp), are returned in an object,
    `{"error": …}`. If there is no event at all, the first lines of a text are a payload, returned
    at the end: a page of a proxy, or an error in words.
    """

    def __init__(self, *, limit: int) -> None:
        """`limit`: the maximum bytes of one event, and so of what is buffered here."""
        self._limit = limit
        self._line: list[bytes] = []
        """Pieces of a line whose end has not arrived."""
        self._line_size = 0
        self._data: list[bytes] = []
        """Data lines of an event whose end has not arrived."""
        self._data_size = 0
        self._is_stream = False
        """An event has begun: this is a stream."""
        self._is_body = False
        """The bytes are one JSON body."""
        self._is_error = False
        """The event that began is an error."""
        self._text = b""
        """The beginning of what is no event and no JSON."""
        self._after_cr = False
        """The last read ended in CR: an LF at the start of the next one belongs to it, and is no
        empty line."""
        self.done = False
        """The stream contained `[DONE]`."""

    @property
    def text(self) -> bytes | None:
        """The beginning of what is no event and, at first, no JSON; None if an event has begun."""
        return None if self._is_stream or not self._text else self._text

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that these bytes complete. Raises UpstreamFailed for an event above the
        limit."""
        if self.done or not data:
            return []
        if (
            # Almost every read is one event that is an object.
            data.startswith(b"data: {")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"}\n\n")
            and not (self._line or self._data or self._after_cr or self._is_error)
            and b"\r" not in data
            and len(data) <= self._limit
        ):
            self._is_stream = True
            return [data[6:-2]]
        payloads = self._whole_events(data)
        if payloads is None:
            payloads = self._read_lines(data)
        else:
            self._is_stream = True
        return self._until_done(payloads)

    def flush(self) -> list[bytes]:
        """The payload that was still open when the stream ended: many servers leave out the last
        empty line.

        A payload that was cut off in the middle is dropped. The stream ended early; the translator
        decides what that means.
        """
        if self.done:
            return []
        payloads = self._until_done(self._end_line() + self._end_event())
        if not self._is_stream and not self._is_body and not self.done:
            return [*payloads, self._text] if _is_readable(self._text) else payloads
        return [payload for payload in payloads if self._is_body or _may_be_whole(payload)]

    def _whole_events(self, data: bytes) -> list[bytes] | None:
        """The payloads of an ordinary read: whole events of one `data: ` line each. None for any
        other read."""
        if (
            self._line
            or self._data
            or self._after_cr
            or self._is_error
            or not data.startswith(b"data: ")
            or not data.endswith(b"\n\n")
            or b"\r" in data
        ):
            return None
        if len(data) > self._limit:
            return None
        events = data[6:-2].split(b"\n\ndata: ")
        return events if data.count(b"\n") == 2 * len(events) and b"" not in events else None

    def _until_done(self, payloads: list[bytes]) -> list[bytes]:
        for position, payload in enumerate(payloads):
            if payload[:1] != b"{" and payload.strip(b' "').upper() == _DONE:
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
        """Handles the line that was read; an empty one ends the event."""
        line = b"".join(self._line).removeprefix(_BYTE_ORDER_MARK)
        self._line, self._line_size = [], 0
        if self._is_body or (not self._is_stream and line.startswith((b"{", b"["))):
            self._is_body = True
            self._append_data(line)
            return []
        if line.startswith(b"data:"):
            self._is_stream = True
            data = line[5:].removeprefix(b" ")
            payloads = self._end_event() if self._is_followed_by(data) else []
            self._append_data(data)
            return payloads
        if line.startswith(b"{"):
            return [line]
        if not line:
            return self._end_event()
        return self._end_other_line(line)

    def _end_other_line(self, line: bytes) -> list[bytes]:
        """Handles a line that is no data."""
        field, _, value = line.partition(b":")
        if field == b"event":
            self._is_error = value.strip() in _ERROR_EVENTS
        elif field == b"error":
            self._is_stream = True
            return [_as_error(value.strip())] if value.strip() else []
        elif not self._is_stream and field not in _FIELDS and len(self._text) < _MAX_TEXT:
            self._text += line[:_MAX_TEXT] + b"\n"
        return []

    def _is_followed_by(self, data: bytes) -> bool:
        """Whether the data so far is a payload and this another one: some servers leave out the
        empty lines between events."""
        return (
            len(self._data) == 1
            and self._data[0].startswith(b"{")
            and self._data[0].endswith(b"}")
            and data.startswith((b"{", _DONE))
        )

    def _append_data(self, data: bytes) -> None:
        self._data.append(data)
        self._data_size += len(data) + _LINE_WEIGHT

    def _end_event(self) -> list[bytes]:
        payload = b"\n".join(self._data)
        self._data, self._data_size = [], 0
        is_error, self._is_error = self._is_error, False
        if is_error and payload.strip() not in (b"", _DONE):
            return [_as_error(payload)]
        return [payload] if payload else []


def _as_error(data: bytes) -> bytes:
    """The data of an error as JSON with the field `error`, whatever it is."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        data = json.dumps(data.decode(errors="replace")).encode()
    return b'{"error":' + data + b"}"


def _is_readable(text: bytes) -> bool:
    """Whether the beginning of a text has words, and is UTF-8 up to where it was cut."""
    return text.strip() != b"" and "\ufffd" not in text[:-4].decode(errors="replace")[:-1]


def _may_be_whole(payload: bytes) -> bool:
    """Whether a payload without its end may be complete: an object, or a text."""
    payload = payload.strip()
    return payload.endswith(b"}") or not payload.startswith((b"{", b"[", b'"'))
