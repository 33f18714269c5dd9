"""The form of an upload, read piece by piece: a file in it is never held as a whole."""

from collections.abc import AsyncIterator

from starlette.requests import Request

from features.files.form_parser import (
    FileBegin,
    FileData,
    FormEvent,
    FormField,
    FormParser,
    form_boundary,
    incomplete_form,
)
from models.errors import InvalidRequest, RequestTooLarge, UnsupportedMediaType
from web.http.body import announced_size, body_pieces

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
