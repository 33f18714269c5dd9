"""A multipart form, read piece by piece: a file in it is never held as a whole."""

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from models.errors import InvalidRequest, RequestTooLarge, UnsupportedMediaType
from web.http.body import announced_size, body_pieces

_MAX_FIELD = 4096
"""Bytes of a field that is no file."""
_MAX_PARTS = 32
FORM_BYTES = 64 * 1024
"""Bytes that a form may have besides its file."""


@dataclass(frozen=True, slots=True)
class _Begin:
    headers: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class _Data:
    bytes: bytes


class _End:
    pass


class FormPart:
    """A field, or a file. Its bytes are read before the next part is."""

    def __init__(self, form: "MultipartForm", name: str, filename: str | None) -> None:
        self.name = name
        self.filename = filename
        """None: it is a field and no file."""
        self._form = form

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes, in chunks of at most 64 KiB."""
        while isinstance(event := await self._form.next_event(), _Data):
            yield event.bytes

    async def text(self) -> str:
        """The value of a field. Raises InvalidRequest."""
        value = b""
        async for chunk in self.chunks():
            value += chunk
            if len(value) > _MAX_FIELD:
                raise InvalidRequest(
                    f"Invalid '{self.name}': longer than {_MAX_FIELD} bytes.",
                    param=self.name,
                    code="string_above_max_length",
                )
        return value.decode(errors="replace").replace("\0", "\ufffd")


class MultipartForm:
    """The body of a request."""

    def __init__(self, request: Request, limit: int) -> None:
        """`limit`: bytes of the whole body. Raises UnsupportedMediaType, or RequestTooLarge if the
        client has announced more."""
        self._events: deque[_Begin | _Data | _End] = deque()
        self._parser = MultipartParser(
            _boundary(request),
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )
        self._body = body_pieces(request, limit)
        self._parts = 0
        self._is_complete = False
        self._headers: dict[str, bytes] = {}
        self._field = b""
        self._value = b""
        announced = announced_size(request.headers)
        if announced > limit:
            raise RequestTooLarge(f"{limit} bytes")
        self.announced = int(announced)
        """Bytes of the body, as the client has announced them; 0: it has not."""

    async def parts(self) -> AsyncIterator[FormPart]:
        """The parts, in the order of the form. What is left of a part is skipped. Raises
        InvalidRequest and RequestTooLarge, here and while a part is read."""
        while True:
            event = await self.next_event()
            if event is None:
                return
            if isinstance(event, _Begin):
                yield self._part(event)

    def _part(self, begin: _Begin) -> FormPart:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise _invalid(f"it has more than {_MAX_PARTS} parts")
        disposition = begin.headers.get("content-disposition", b"")
        _, options = parse_options_header(disposition.decode("latin-1"))
        if b"name" not in options:
            raise _invalid("a part of it has no name")
        filename = options.get(b"filename")
        return FormPart(
            self,
            options[b"name"].decode(errors="replace")[:100],
            None if filename is None else filename.decode(errors="replace"),
        )

    async def next_event(self) -> _Begin | _Data | _End | None:
        """The next event; None at the end of the body."""
        while not self._events:
            chunk = await anext(self._body, b"")
            if not chunk:
                if not self._is_complete:
                    raise _invalid("it ends early")
                return None
            try:
                self._parser.write(chunk)
            except FormParserError:
                raise _invalid("its parts cannot be read") from None
        return self._events.popleft()

    # --- callbacks of the parser ---

    def _on_part_begin(self) -> None:
        self._headers = {}

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._field.decode("latin-1").lower()] = self._value
        self._field = self._value = b""

    def _on_headers_finished(self) -> None:
        self._events.append(_Begin(self._headers))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(_Data(data[start:end]))

    def _on_part_end(self) -> None:
        self._events.append(_End())

    def _on_end(self) -> None:
        self._is_complete = True


def _boundary(request: Request) -> bytes:
    given = request.headers.get("content-type", "")
    kind, options = parse_options_header(given)
    if kind != b"multipart/form-data":
        raise UnsupportedMediaType(
            f"Unsupported content type: '{given.partition(';')[0][:100]}'. "
            "Send the file as 'multipart/form-data'."
        )
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= 70:
        raise _invalid("its 'Content-Type' has no boundary")
    return boundary


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"The body is not a valid multipart form: {why}.", code="invalid_multipart"
    )
