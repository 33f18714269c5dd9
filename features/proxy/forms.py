"""A client's request with a form, as it is sent to an upstream while it arrives."""

import asyncio
import re
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import IO

import structlog
from starlette.types import Message, Receive

from features.files.form import (
    FileBegin,
    FileData,
    FormEvent,
    FormField,
    FormParser,
    incomplete_form,
)
from features.proxy.requests import (
    IMAGES,
    MODEL,
    OutgoingBody,
    ProxiedRequest,
    RequestSize,
    image_count,
)
from models.errors import ApiError, InvalidRequest, Unavailable
from models.load.budget import Reservation
from models.wire.checks.faults import missing
from models.wire.token_counts import UsageKind
from web.http.body import UNCOUNTED_BYTES

logger = structlog.get_logger()

CheckField = Callable[[str, str], Awaitable[None]]
"""Judges a field of a form by its name and its value. Raises InvalidRequest."""
_MAX_MODEL = 512
"""Characters, as in a create request."""
IN_MEMORY = 64 * 1024
"""Bytes up to which no file is made."""
_PIECE = 256 * 1024
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')
_MAX_FILENAME = 255


class Spool:
    """The part of a form that comes before its field `model`: bytes in the order in which they were
    added, in a temporary file if they are many. The file has no name and ends with the process."""

    def __init__(self, held: Reservation) -> None:
        """`held`: what it has of the process's room for such files."""
        self.size = 0
        self._held = held
        self._start = bytearray()
        self._file: IO[bytes] | None = None

    async def add(self, data: bytes) -> None:
        """Adds bytes. Raises ShareUsedUp or Unavailable if there is no room for them."""
        if not data:
            return
        self.size += len(data)
        if self.size <= IN_MEMORY:
            self._start += data
            return
        await self._held.grow(self.size)
        try:
            await asyncio.to_thread(self._write, data)
        except OSError as error:
            folder = tempfile.gettempdir()
            logger.warning("upload_not_spooled", folder=folder, error=str(error))
            raise Unavailable(
                "The server has no room for an upload whose 'model' comes behind its file. Send "
                "'model' first, or retry."
            ) from None

    async def pieces(self) -> AsyncIterator[bytes]:
        """All bytes, from the first one. May be called again when the iterator before is over or
        not used any more."""
        if self._start:
            yield bytes(self._start)
        at = 0
        while self._file is not None and (piece := await asyncio.to_thread(self._read, at)):
            at += len(piece)
            yield piece

    def close(self) -> None:
        """Frees the file. May be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._held.release()

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (closed by `close`)
        self._file.seek(0, 2)
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[self._file.write(remaining) :]

    def _read(self, at: int) -> bytes:
        if self._file is None:
            return b""
        self._file.seek(at)
        return self._file.read(_PIECE)


class FormRequest(ProxiedRequest):
    """A request with a form, which is sent on while it arrives.

    What comes before the field `model` waits in a spool. What comes behind it goes to the upstream
    piece by piece, and cannot be sent again. Whether it wants a stream is not known: the field
    `stream` may come last.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        receive: Receive,
        parser: FormParser,
        spool: Spool,
        held: Reservation,
    ) -> None:
        """`pieces`: the body as it arrives; `receive`: the client's messages behind it; `held`:
        what the fields have of the process's memory for bodies. The caller closes the spool when
        the request has ended."""
        super().__init__(receive)
        self._pieces = pieces
        self._parser = parser
        self._spool = spool
        self._held = held
        self._writer = FormWriter()
        self._model: str | None = None
        self._is_complete = False
        self._is_over = asyncio.Event()
        """Nobody reads the body any more."""
        self._check: CheckField | None = None
        self._unchecked: list[FormField] = []
        self._images = 1

    async def read_model(self) -> str | None:
        """Reads up to the field `model`, or the whole form if it has none. Raises InvalidRequest,
        RequestTooLarge, ClientDisconnected, and what `Spool.add` raises."""
        while self._model is None and not self._is_complete:
            await self._spool.add(await self._advance())
        return self._model

    async def begin(self, check: CheckField) -> None:
        """Judges the fields that were read, and from now on each that follows before it is sent.
        Raises InvalidRequest."""
        self._check = check
        unchecked, self._unchecked = self._unchecked, []
        for field in unchecked:
            await check(field.name, field.value.decode(errors="replace"))

    async def measure(self, _: tuple[str, ...], /) -> RequestSize:
        """The fields that were read until now."""
        return RequestSize(self._parser.field_bytes, None)

    def units(self, kind: UsageKind, /) -> int:
        """As the fields that were read until now have them."""
        return self._images if kind is UsageKind.IMAGES else 0

    async def open(self, model: str) -> OutgoingBody:
        """The form with this model as its first field. Without a length, in chunks, unless all of
        it has arrived."""
        head = self._writer.encode(FormField(MODEL, model.encode()))
        headers = {"content-type": self._writer.content_type}
        if self._is_complete:
            headers["content-length"] = str(len(head) + self._spool.size)
        return OutgoingBody(self._send(head), headers)

    async def receive(self) -> Message:
        """The client's next message when nobody reads the body any more."""
        await self._is_over.wait()
        return await super().receive()

    def stop(self) -> None:
        """From now on `receive` reads what is left of the body."""
        self._is_over.set()

    async def _send(self, head: bytes) -> AsyncIterator[bytes]:
        yield head
        async for piece in self._spool.pieces():
            yield piece
        try:
            while not self._is_complete:
                if self.may_repeat:
                    self.may_repeat = False
                    self._spool.close()
                if piece := await self._advance():
                    yield piece
        except ApiError as error:
            self.failure = error
            raise

    async def _advance(self) -> bytes:
        """Reads the next piece; returns what the upstream gets of it."""
        piece = await anext(self._pieces, None)
        if piece is None:
            raise incomplete_form()
        events = self._parser.feed(piece)
        if self._parser.field_bytes > UNCOUNTED_BYTES:
            await self._held.grow(self._parser.field_bytes)
        sent = [event for event in events if not self._takes_model(event)]
        for event in sent:
            if isinstance(event, FormField):
                await self._judge(event)
        encoded = b"".join(map(self._writer.encode, sent))
        if not self._parser.has_ended:
            return encoded
        # What may come behind the last boundary belongs to no part.
        self._is_complete = True
        self._is_over.set()
        return encoded + self._writer.end

    async def _judge(self, field: FormField) -> None:
        if field.name == IMAGES and field.value.isdigit():
            self._images = image_count(int(field.value[:4]))
        if self._check is None:
            self._unchecked.append(field)
        else:
            await self._check(field.name, field.value.decode(errors="replace"))

    def _takes_model(self, part: FormEvent) -> bool:
        """Whether this part is the model, which is kept. Raises InvalidRequest for a model that
        cannot be used, or a second one."""
        if not isinstance(part, FormField | FileBegin):
            return False
        if part.name != MODEL and not part.name.startswith(f"{MODEL}["):
            return False
        if part.name != MODEL or self._model is not None:
            raise _wrong_model("given once, as a field 'model'")
        if isinstance(part, FileBegin):
            raise _wrong_model("a text, not a file")
        try:
            model = part.value.decode()
        except UnicodeDecodeError:
            raise _wrong_model("UTF-8") from None
        if not model:
            raise missing(MODEL)
        if len(model) > _MAX_MODEL or not model.isprintable():
            raise _wrong_model(f"at most {_MAX_MODEL} printable characters")
        self._model = model
        return True


class FormWriter:
    """Writes the parts of a form anew, with a boundary of its own and in the plainest form, so that
    no two readers can disagree on what it holds. Pure."""

    def __init__(self) -> None:
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._begin = f"--{boundary}\r\n".encode()
        self.end = f"--{boundary}--\r\n".encode()
        """What comes behind the last part."""

    def encode(self, event: FormEvent) -> bytes:
        """The bytes of this event."""
        if isinstance(event, FileData):
            return event.data
        if isinstance(event, FormField):
            return self._head(event.name, None, event.content_type) + event.value + b"\r\n"
        if isinstance(event, FileBegin):
            return self._head(event.name, event.filename, event.content_type)
        return b"\r\n"

    def _head(self, name: str, filename: str | None, content_type: str | None) -> bytes:
        lines = [f'Content-Disposition: form-data; name="{name}"']
        if filename is not None:
            # A quote or a backslash ends or hides the end of a quoted string for some readers.
            lines[0] += f'; filename="{_UNSAFE.sub("_", filename)[-_MAX_FILENAME:]}"'
        if content_type is not None:
            lines.append(f"Content-Type: {content_type}")
        return self._begin + "\r\n".join((*lines, "", "")).encode()


def _wrong_model(expected: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid 'model': it must be {expected}.", param=MODEL, code="invalid_value"
    )


logger = structlog.get_logger()
