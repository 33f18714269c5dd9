"""The lines of a batch's input file: read one after another, and checked one by one."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from models.errors import InvalidRequest, RequestTooLarge
from models.wire.checks.faults import shorten
from models.wire.json_input import BodyLimits, decode_request

RESPONSES: Final = "/v1/responses"
ENDPOINTS: Final = (RESPONSES, "/v1/chat/completions", "/v1/embeddings")
"""The endpoints that the requests of a batch may be for."""
MAX_CUSTOM_ID = 512
"""Characters."""
MAX_MODEL = 512
"""Characters of a name of a model that are stored, as in a create."""
_GROUP_LINES = 200
_GROUP_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line of an input file."""

    number: int
    """from 1"""
    end: int
    """the byte behind it, where the next one begins"""
    text: bytes | None
    """without the line break; None: it is longer than a line may be"""


@dataclass(frozen=True, slots=True)
class LineRequest:
    """The request in a line."""

    custom_id: str
    body: dict[str, Any]


class InvalidLine(Exception):
    """A line of an input file is no request, so the batch fails."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def at(self, line: int | None) -> dict[str, Any]:
        """The error as the batch shows it. `line` None: it is about the whole file."""
        return {"code": self.code, "line": line, "message": self.message, "param": self.param}


def duplicate(custom_id: str) -> InvalidLine:
    """The fault of a line whose `custom_id` an earlier line has."""
    return InvalidLine(
        "duplicate_custom_id",
        f"The custom_id '{shorten(custom_id)}' for this request is a duplicate of another request. "
        "The custom_id parameter must be unique for each request in a batch.",
        "custom_id",
    )


async def read_lines(
    chunks: AsyncIterator[bytes], number: int, start: int, longest: int
) -> AsyncIterator[InputLine]:
    """The lines in the bytes of a file. `number`: lines before the first of these; `start`: the
    byte at which the chunks begin; `longest`: bytes of a line of which the text is kept."""
    buffer = bytearray()
    end, is_too_long = start, False
    async for chunk in chunks:
        position = 0
        while (found := chunk.find(b"\n", position)) >= 0:
            buffer += chunk[position:found]
            number += 1
            line_end = end + found + 1
            too_long = is_too_long or len(buffer) > longest
            yield InputLine(number, line_end, None if too_long else bytes(buffer))
            buffer.clear()
            position, is_too_long = found + 1, False
        buffer += chunk[position:]
        end += len(chunk)
        if len(buffer) > longest:
            buffer.clear()
            is_too_long = True
    if buffer or is_too_long:
        yield InputLine(number + 1, end, None if is_too_long else bytes(buffer))


async def group_lines(
    lines: AsyncIterator[InputLine], max_lines: int = _GROUP_LINES
) -> AsyncIterator[list[InputLine]]:
    """The lines in groups, each of which one transaction stores."""
    group: list[InputLine] = []
    size = 0
    async for line in lines:
        group.append(line)
        size += len(line.text or b"")
        if len(group) >= max_lines or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def parse_line(text: bytes | None, endpoint: str, limits: BodyLimits) -> LineRequest:
    """The request in a line. Raises InvalidLine."""
    if text is None:
        raise InvalidLine("line_too_long", f"This line is longer than {limits.size} bytes.")
    try:
        value = decode_request(text, limits)
    except InvalidRequest as error:
        raise InvalidLine(
            "invalid_json_line", "This line is not parseable as valid JSON."
        ) from error
    except RequestTooLarge as error:
        raise InvalidLine("line_too_long", error.message) from error
    if type(value) is not dict:
        raise InvalidLine("invalid_json_line", "This line is not a JSON object.")
    custom_id = _text(value, "custom_id")
    if not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise InvalidLine(
            "invalid_custom_id",
            f"The custom_id must have 1 to {MAX_CUSTOM_ID} characters.",
            "custom_id",
        )
    if (method := _text(value, "method")) != "POST":
        raise InvalidLine(
            "invalid_method", f"Invalid method '{shorten(method)}': it must be 'POST'.", "method"
        )
    if (url := _text(value, "url")) != endpoint:
        raise InvalidLine(
            "url_mismatch",
            f"The URL '{shorten(url)}' of this request does not match the endpoint of the batch, "
            f"'{endpoint}'.",
            "url",
        )
    body = value.get("body")
    if type(body) is not dict:
        raise InvalidLine(
            "missing_required_parameter", "The body of this request must be an object.", "body"
        )
    return LineRequest(custom_id, body)


def _text(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    if type(found) is not str:
        raise InvalidLine(
            "missing_required_parameter", f"Missing required parameter: '{name}'.", name
        )
    return found


def is_blank(line: InputLine) -> bool:
    """A line without text holds no request, and is no fault."""
    return line.text is not None and not line.text.strip()


@dataclass(slots=True)
class CheckedLines:
    """What a group of lines holds."""

    numbers: list[int] = field(default_factory=list)
    custom_ids: list[str] = field(default_factory=list)
    models: dict[str, None] = field(default_factory=dict)
    """of the requests, in their order, each once"""
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def model(self) -> str | None:
        """Of the first request that names one."""
        return next(iter(self.models), None)


def check_lines(lines: Sequence[InputLine], endpoint: str, limits: BodyLimits) -> CheckedLines:
    """Parses the lines. Too slow for an event loop."""
    checked = CheckedLines()
    for line in lines:
        if is_blank(line):
            continue
        try:
            request = parse_line(line.text, endpoint, limits)
        except InvalidLine as fault:
            checked.errors.append(fault.at(line.number))
            continue
        checked.numbers.append(line.number)
        checked.custom_ids.append(request.custom_id)
        model = request.body.get("model")
        if type(model) is str:
            checked.models.setdefault(model[:MAX_MODEL])
    return checked
