"""The form of an upload, a `multipart/form-data` body that is read piece by piece: a file in it is
never held as a whole.

What is accepted is stricter than what servers accept: a part that two readers could understand
differently is refused, because an upstream may get it written anew (features/proxy/forms.py).
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from models.errors import InvalidRequest, RequestTooLarge, UnsupportedMediaType
from models.wire.checks.faults import shorten
from web.http.body import announced_size, body_pieces

_DEFAULT_PARTS = 256
_MAX_HEADERS = 8
_MAX_HEADER_BYTES = 4096
_MAX_OPTIONS = 16
"""Semicolons in the head of a part: python-multipart needs time by their square."""
_NAME = re.compile(r"[A-Za-z0-9_.\-\[\]]{1,200}")
_CONTENT_TYPE = re.compile(r"[!-~]{1,100}/[!-~]{1,100}(?:[ -~]{1,100})?")
_UNENCODED = frozenset(("", "7bit", "8bit", "binary"))


@dataclass(frozen=True, slots=True)
class FormField:
    """A complete part without a file name."""

    name: str
    value: bytes
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class FileBegin:
    """The head of a part with a file name."""

    name: str
    filename: str
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class FileData:
    """Some of its bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FileEnd:
    """It is complete."""


FormEvent = FormField | FileBegin | FileData | FileEnd


def form_boundary(content_type: str) -> bytes | None:
    """The boundary in the content type of a form; None if it has another type. Raises
    InvalidRequest for a form without one."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        return None
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise invalid_form("its content type has no boundary")
    return boundary


def invalid_form(reason: str) -> InvalidRequest:
    """The error for a form that cannot be read."""
    return InvalidRequest(
        f"The request body could not be parsed as a form: {reason}.", code="invalid_form"
    )


def incomplete_form() -> InvalidRequest:
    """The error for a body that ends early."""
    return invalid_form("it ends before its last boundary")


class FormParser:
    """Makes events of the bytes of one form. Files are passed on piece by piece; a field is kept
    until it is complete."""

    def __init__(
        self, boundary: bytes, max_field_bytes: int, max_parts: int = _DEFAULT_PARTS
    ) -> None:
        """`max_field_bytes`: of all fields together. Raises InvalidRequest for a boundary that is
        too long."""
        self._max_field_bytes = max_field_bytes
        self._max_parts = max_parts
        self.field_bytes = 0
        """of all fields until now"""
        self.has_ended = False
        """Whether the last boundary was read."""
        self._events: list[FormEvent] = []
        self._parts = 0
        self._headers: dict[str, str] = {}
        self._header_name = b""
        self._header_value = b""
        self._field: FormField | None = None
        self._value = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._add_header_name,
                    "on_header_value": self._add_header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
                max_header_count=_MAX_HEADERS,
                max_header_size=_MAX_HEADER_BYTES,
            )
        except FormParserError:
            raise invalid_form("its boundary is too long") from None

    def feed(self, piece: bytes) -> list[FormEvent]:
        """What the next bytes complete. Raises InvalidRequest and RequestTooLarge."""
        self._events = []
        try:
            self._parser.write(piece)
        except FormParserError:
            raise invalid_form("its parts are not separated as its content type says") from None
        return self._events

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > self._max_parts:
            raise invalid_form(f"it has more than {self._max_parts} parts")
        self._headers = {}

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        name = self._header_name.decode("latin-1").lower()
        if name in self._headers:
            raise invalid_form(f"a part has the header '{shorten(name)}' twice")
        self._headers[name] = self._header_value.decode("utf-8", "replace").strip()
        self._header_name = self._header_value = b""

    def _end_headers(self) -> None:
        name, filename = _disposition(self._headers.get("content-disposition", ""))
        encoding = self._headers.get("content-transfer-encoding", "").lower()
        if encoding not in _UNENCODED:
            raise invalid_form(f"the part '{name}' has a Content-Transfer-Encoding")
        given_type = self._headers.get("content-type", "")
        content_type = given_type if _CONTENT_TYPE.fullmatch(given_type) else None
        if filename is None:
            self._field = FormField(name, b"", content_type)
            self._value = bytearray()
        else:
            self._field = None
            self._events.append(FileBegin(name, filename, content_type))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._events.append(FileData(data[start:end]))
            return
        self.field_bytes += end - start
        if self.field_bytes > self._max_field_bytes:
            raise RequestTooLarge(f"{self._max_field_bytes} bytes without files")
        self._value += data[start:end]

    def _end_part(self) -> None:
        if self._field is None:
            self._events.append(FileEnd())
            return
        field = self._field
        self._events.append(FormField(field.name, bytes(self._value), field.content_type))
        self._value = bytearray()

    def _end(self) -> None:
        self.has_ended = True


def _disposition(header: str) -> tuple[str, str | None]:
    """The name and the file name in a part's Content-Disposition. Raises InvalidRequest."""
    if header.count(";") > _MAX_OPTIONS:
        raise invalid_form(f"a part has more than {_MAX_OPTIONS} semicolons in its head")
    # python-multipart reads headers as Latin-1, the names of files are UTF-8.
    kind, options = parse_options_header(header.encode().decode("latin-1"))
    if kind != b"form-data" or b"name" not in options:
        raise invalid_form("a part has no name")
    name = options[b"name"].decode("utf-8", "replace")
    if not _NAME.fullmatch(name):
        raise invalid_form(f"the name of the part '{shorten(name)}' has an unusual character")
    filename = options.get(b"filename")
    return name, None if filename is None else filename.decode("utf-8", "replace")


_MAX_FIELD = 4096
"""Bytes of a field that is no file."""
_MAX_PARTS = 32
FORM_BYTES = 64 * 1024
"""Bytes that a form may have besides its file."""


class FormPart:
    """A field, or a file. The bytes of a file are read before the next part is."""

    def __init__(self, begin: FormField | FileBegin, events: AsyncIterator[FormEvent]) -> None:
        """`events`: what follows the head of a file."""
        self.name = begin.name
        self.filename = begin.filename if isinstance(begin, FileBegin) else None
        """None: it is a field and no file."""
        self._value = b"" if isinstance(begin, FileBegin) else begin.value
        self._events = events

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes of a file, in chunks of at most 64 KiB."""
        while isinstance(event := await anext(self._events, None), FileData):
            yield event.data

    def text(self) -> str:
        """The value of a field. Raises InvalidRequest."""
        if len(self._value) > _MAX_FIELD:
            raise InvalidRequest(
                f"Invalid '{self.name}': longer than {_MAX_FIELD} bytes.",
                param=self.name,
                code="string_above_max_length",
            )
        return self._value.decode(errors="replace").replace("\0", "\ufffd")


class MultipartForm:
    """The body of a request."""

    def __init__(self, request: Request, limit: int) -> None:
        """`limit`: bytes of the whole body. Raises UnsupportedMediaType, InvalidRequest, or
        RequestTooLarge if the client has announced more."""
        given = request.headers.get("content-type", "")
        boundary = form_boundary(given)
        if boundary is None:
            raise UnsupportedMediaType(
                f"Unsupported content type: '{given.partition(';')[0][:100]}'. "
                "Send the file as 'multipart/form-data'."
            )
        self._parser = FormParser(boundary, FORM_BYTES, _MAX_PARTS)
        self._body = body_pieces(request, limit)
        announced = announced_size(request.headers)
        if announced > limit:
            raise RequestTooLarge(f"{limit} bytes")
        self.announced = int(announced)
        """Bytes of the body, as the client has announced them; 0: it has not."""

    async def parts(self) -> AsyncIterator[FormPart]:
        """The parts, in the order of the form. What is left of a file is skipped. Raises
        InvalidRequest and RequestTooLarge, here and while a file is read."""
        events = self._events()
        async for event in events:
            if isinstance(event, FormField | FileBegin):
                yield FormPart(event, events)

    async def _events(self) -> AsyncIterator[FormEvent]:
        async for piece in self._body:
            for event in self._parser.feed(piece):
                yield event
        if not self._parser.has_ended:
            raise incomplete_form()
