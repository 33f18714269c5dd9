"""A client's request as it is sent to an upstream: JSON, or a form while it arrives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import orjson
from starlette.types import Message, Receive

from features.files.form_parser import FileBegin, FormEvent, FormField, FormParser, incomplete_form
from features.proxy.form_writer import FormWriter
from features.proxy.spool import Spool
from models.errors import ApiError, InvalidRequest
from models.load.budget import Reservation
from models.wire.checks.faults import missing
from models.wire.json_input import inline_size
from models.wire.proxied_usage import bounded_count
from models.wire.usage_kind import UsageKind
from web.http.body import UNCOUNTED_BYTES, JsonBody

CheckField = Callable[[str, str], Awaitable[None]]
"""Judges a field of a form by its name and its value. Raises InvalidRequest."""
_MODEL = "model"
_MAX_MODEL = 512
"""Characters, as in a create request."""
_IMAGES = "n"
"""The field with the number of images."""


@dataclass(frozen=True, slots=True)
class OutgoingBody:
    """A body for one call of an upstream."""

    data: bytes | AsyncIterator[bytes]
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class RequestSize:
    """What a quota of tokens is estimated from."""

    characters: int
    """without inline files"""
    max_output: int | None
    """tokens to which the request limits the output"""


class ProxiedRequest(Protocol):
    """A request whose model is known."""

    @property
    def wants_stream(self) -> bool:
        """Whether the answer begins soon and comes piece by piece."""

    @property
    def may_repeat(self) -> bool:
        """Whether all of it can be sent again, to another upstream."""

    @property
    def failure(self) -> ApiError | None:
        """The error of the client's that ended the sending of the body."""

    async def measure(self, output_limits: tuple[str, ...], /) -> RequestSize:
        """Its size. `output_limits`: parameters, of which the first that is given counts."""

    def units(self, kind: UsageKind, /) -> int:
        """How many images it asks for, or how many characters it lets be spoken; 0 for others."""

    async def open(self, model: str) -> OutgoingBody:
        """The body with the model's name at the upstream."""

    async def receive(self) -> Message:
        """The client's next message behind the body."""

    def stop(self) -> None:
        """The upstream does not read the body any more."""

    def release(self) -> None:
        """An upstream has answered, or none will."""


class JsonRequest:
    """A request with a JSON object."""

    may_repeat = True
    failure: ApiError | None = None

    def __init__(self, body: JsonBody, receive: Receive) -> None:
        """`body`: read completely."""
        self._body = body
        self._receive = receive
        # As chat completions and speech have it.
        value = body.value
        self.wants_stream = value.get("stream") is True or value.get("stream_format") == "sse"
        spoken = value.get("input")
        self._units = {
            UsageKind.IMAGES: _images(value.get(_IMAGES)),
            UsageKind.AUDIO_SPEECHES: len(spoken) if isinstance(spoken, str) else 0,
        }

    async def measure(self, output_limits: tuple[str, ...], /) -> RequestSize:
        """Other values than numbers are the upstream's to refuse."""
        named = [self._body.value.get(name) for name in output_limits]
        max_output = next((each for each in named if type(each) is int and each >= 0), None)
        inline = await self._body.run(partial(inline_size, self._body.value))
        return RequestSize(self._body.size - inline, max_output)

    def units(self, kind: UsageKind, /) -> int:
        """As the body has them."""
        return self._units.get(kind, 0)

    async def open(self, model: str) -> OutgoingBody:
        """The object with this model."""
        encode = partial(orjson.dumps, {**self._body.value, _MODEL: model})
        encoded = await self._body.run(encode)
        return OutgoingBody(encoded, {"content-type": "application/json"})

    async def receive(self) -> Message:
        """The client's next message."""
        return await self._receive()

    def stop(self) -> None:
        """Nothing is to be stopped: it was read completely."""

    def release(self) -> None:
        """Frees the body."""
        self._body.release()


class FormRequest:
    """A request with a form, which is sent on while it arrives.

    What comes before the field `model` waits in a spool. What comes behind it goes to the upstream
    piece by piece, and cannot be sent again.
    """

    wants_stream = False
    """Not known: the field `stream` may come last."""

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
        self.may_repeat = True
        self.failure: ApiError | None = None
        self._pieces = pieces
        self._receive = receive
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
        head = self._writer.encode(FormField(_MODEL, model.encode()))
        headers = {"content-type": self._writer.content_type}
        if self._is_complete:
            headers["content-length"] = str(len(head) + self._spool.size)
        return OutgoingBody(self._send(head), headers)

    async def receive(self) -> Message:
        """The client's next message when nobody reads the body any more."""
        await self._is_over.wait()
        return await self._receive()

    def stop(self) -> None:
        """From now on `receive` reads what is left of the body."""
        self._is_over.set()

    def release(self) -> None:
        """Nothing: an upstream may answer before it has read everything."""

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
        if field.name == _IMAGES and field.value.isdigit():
            self._images = _images(int(field.value[:4]))
        if self._check is None:
            self._unchecked.append(field)
        else:
            await self._check(field.name, field.value.decode(errors="replace"))

    def _takes_model(self, part: FormEvent) -> bool:
        """Whether this part is the model, which is kept. Raises InvalidRequest for a model that
        cannot be used, or a second one."""
        if not isinstance(part, FormField | FileBegin):
            return False
        if part.name != _MODEL and not part.name.startswith(f"{_MODEL}["):
            return False
        if part.name != _MODEL or self._model is not None:
            raise _wrong_model("given once, as a field 'model'")
        if isinstance(part, FileBegin):
            raise _wrong_model("a text, not a file")
        try:
            model = part.value.decode()
        except UnicodeDecodeError:
            raise _wrong_model("UTF-8") from None
        if not model:
            raise missing(_MODEL)
        if len(model) > _MAX_MODEL or not model.isprintable():
            raise _wrong_model(f"at most {_MAX_MODEL} printable characters")
        self._model = model
        return True


def _images(number: object) -> int:
    """How many images a request for this number of them asks for, as usage counts them."""
    return bounded_count(number) if type(number) is int and number > 0 else 1


def _wrong_model(expected: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid 'model': it must be {expected}.", param=_MODEL, code="invalid_value"
    )
