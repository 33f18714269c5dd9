"""How what a connection has received is given to the parser: in portions of little work, none of
which has the beginnings of two requests."""

import asyncio
import re
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

WORK_OF_A_TURN: Final = 256
"""Portions and calls of the parser for one connection in one turn of the event loop. A portion that
has begun is finished."""
_PORTION = 32 * 1024
"""Bytes."""
_SHORT_LINES = 256
"""A portion with more lines is shorter: chunks of one byte and the shortest header fields are calls
for a few bytes each."""
_SHORT_PORTION = 2048
_END = b"\r\n\r\n"
"""The end of a head, and of a chunked body."""
_LINE_ENDS = re.compile(rb"[\r\n]+")


def is_line_end(data: bytes, start: int) -> bool:
    """Whether line ends are next in `data`: at most the end of a request, and none begins."""
    return data[start] in b"\r\n"


def portion_end(data: bytes, start: int, body_left: int) -> int:
    """The end of the portion that begins at `start`. `body_left`: bytes that are left of a body
    with a length, which the parser delivers in one piece."""
    if body_left:
        return min(start + body_left, len(data))
    limit = min(start + _PORTION, len(data))
    if data.count(b"\n", start, limit) > _SHORT_LINES:
        limit = min(start + _SHORT_PORTION, len(data))
    # The end of a request may have come in two pieces; without this, a request would follow it.
    line_ends = _LINE_ENDS.match(data, start, limit)
    if line_ends is not None:
        return line_ends.end()
    end = data.find(_END, start, limit)
    return limit if end < 0 else end + len(_END)


class ReadingControl(FlowControl):
    """uvicorn's flow control. Reading pauses also while something that was received is kept."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_declined = False
        """The application does not take more now."""
        self._is_held = False

    def pause_reading(self) -> None:
        """The application does not take more now."""
        self._is_declined = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """The application takes more."""
        self._is_declined = False
        if not self._is_held:
            super().resume_reading()

    def hold(self, is_held: bool) -> None:
        """Whether something that was received is kept."""
        if is_held == self._is_held:
            return
        self._is_held = is_held
        if is_held:
            super().pause_reading()
        elif not self._is_declined:
            super().resume_reading()
