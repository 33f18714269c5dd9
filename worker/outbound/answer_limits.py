"""How much a tool server's answer may hold, judged in its bytes before they are parsed.

Objects need more memory than their JSON, up to thirty times: 200 000 empty content blocks are six
megabytes. So values are counted too. Commas and brackets in strings do not count.
"""

import re
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

from models.wire.json_values import ValueCounter

_END_OF_EVENT = re.compile(rb"(?:\r\n|\r|\n){2}")


class AnswerTooLarge(Exception):
    """The answer is beyond a limit. The message completes "answered with more than "."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits of one answer, or of each event of a stream without end."""

    size: int
    """bytes"""
    values: int
    """JSON values"""


async def limited(
    chunks: AsyncIterable[bytes], limits: AnswerLimits, *, is_endless: bool
) -> AsyncIterator[bytes]:
    """The chunks of an answer, or of a stream of events that has no end: then the limits hold for
    each event. Raises AnswerTooLarge."""
    size, counter = 0, ValueCounter()
    async for chunk in chunks:
        size += len(chunk)
        events = _END_OF_EVENT.split(chunk) if is_endless else [chunk]
        if len(events) > 1:
            size, counter = len(events[-1]), ValueCounter()
        if size > limits.size:
            raise AnswerTooLarge(f"{limits.size} bytes")
        # The events before the last one are in this chunk, which has some kilobytes.
        counter.feed(events[-1])
        if counter.count > limits.values:
            raise AnswerTooLarge(f"{limits.values} JSON values")
        yield chunk
