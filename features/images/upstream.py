"""Calls of `/v1/images/generations` and `/v1/images/edits` of the upstreams that serve a model.

A call is repeated, at the next upstream or without a stream, only after an answer that refuses it:
then no image was paid for. After anything else its outcome is unknown, and the model gets this as
the result.

What upstreams answer on `/v1/images/*`. Pure.

An image is base64 in `b64_json`, also as a data URL; engines and older models answer with an
address in `url` (LocalAI, DALL-E). Others mix both fields up, have `images` in the place of `data`
(SiliconFlow, fal), or texts in the list (the WebUI of Stable Diffusion). Servers that know no
`stream` answer a stream's request with JSON. A stream ends with `image_generation.completed` or
`image_edit.completed`.
"""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
import structlog

from models.config.routes import Destination
from models.config.upstream import UpstreamSettings
from models.config.upstream_access import (
    CREDENTIAL_STATUSES,
    excerpt,
    request_headers,
    secrets_of,
    without_secrets,
)
from models.errors import UpstreamFailed
from models.fence import fenced
from models.files.kinds import IMAGES, Examination
from models.http_bodies import BodyTooLarge, bounded
from models.upstream_errors.frames import ErrorReport, report_of, report_of_text
from models.wire.json_input import clean_text
from worker.tools.provider import ToolCallError
from worker.upstream.sse import SseSplitter

MODERATION_BLOCKED = "moderation_blocked"
_SHOWN_FIELDS = ("size", "quality", "background", "output_format")
_MAX_TEXT = 32_000
"""Characters of a revised prompt; as many as OpenAI takes of a prompt."""


class NoImage(Exception):
    """There is no image. The message is for the model and the client. `code`: the upstream's."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class ImageAnswer:
    """An answer with an image, or with its address."""

    data: str
    """the image in base64, as it came; empty if there is an address"""
    url: str
    fields: dict[str, str]
    """of the item: `revised_prompt`, `size`, …"""
    usage: dict[str, Any]
    """an object with `usage`; without it if the upstream counts nothing"""


def parse_json(raw: bytes) -> Any:
    """The JSON of a body or an event. Raises NoImage."""
    try:
        return orjson.loads(raw)
    except ValueError:
        raise NoImage("The upstream's answer is no JSON.") from None


def image_of(answer: Any) -> ImageAnswer:
    """The image in a JSON answer, or in the last event of a stream. Raises NoImage."""
    if not isinstance(answer, dict):
        raise NoImage("The upstream's answer has no image.")
    entries = answer.get("data") or answer.get("images")
    entry = entries[0] if isinstance(entries, list) and entries else answer
    if isinstance(entry, str):
        entry = {"b64_json": entry}
    image = ""
    if isinstance(entry, dict):
        image = _text(entry.get("b64_json")) or _text(entry.get("url"))
    if not image:
        raise NoImage("The upstream's answer has no image.")
    is_address = image.startswith(("http://", "https://"))
    data, url = ("", image) if is_address else (image, "")
    whole = {**answer, **entry}
    fields = {name: text for name in _SHOWN_FIELDS if 0 < len(text := _text(whole.get(name))) < 64}
    if revised := clean_text(_text(whole.get("revised_prompt")))[:_MAX_TEXT]:
        fields["revised_prompt"] = revised
    return ImageAnswer(data, url, fields, {"usage": answer.get("usage")})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def decoded(data: str, max_bytes: int) -> bytes:
    """The image in base64 or a data URL. Raises NoImage if it is none, or is too large."""
    if data.startswith("data:"):
        data = data.partition(",")[2]
    # Some encoders divide lines, or leave the padding out.
    data = "".join(data.split())
    data += "=" * (-len(data) % 4)
    if len(data) // 4 * 3 > max_bytes + 3:
        raise too_large(max_bytes)
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise NoImage("The image is no valid base64.") from None
    kind_of(content, max_bytes)
    return content


def kind_of(content: bytes, max_bytes: int) -> str:
    """The media type of an image. Raises NoImage if the bytes are none, or too many."""
    if len(content) > max_bytes:
        raise too_large(max_bytes)
    examination = Examination()
    examination.feed(content[:1024])
    kind = examination.kind()
    if kind not in IMAGES:
        raise NoImage("It is no image of a supported format: .jpeg, .png, .gif, .webp.")
    return kind


def too_large(max_bytes: int) -> NoImage:
    """An image has more bytes than it may have."""
    return NoImage(f"The image is larger than {max_bytes} bytes.")


def report_in(raw: bytes) -> ErrorReport:
    """What an error's body says."""
    try:
        return report_of(orjson.loads(raw))
    except (ValueError, RecursionError):
        return report_of_text(raw.decode(errors="replace").strip())


logger = structlog.get_logger()

OnPartial = Callable[[str], Awaitable[None]]
"""Gets the base64 of a partial image."""

_HEAD = 256 * 1024
"""Bytes of an answer beside its image."""
_MAX_PARTIAL = 3
_MADE = (200, 201)
_ELSEWHERE = frozenset((404, 405, 408, 429)) | CREDENTIAL_STATUSES
"""Statuses after which the next upstream is tried, as after all from 500 on."""
_FIRST_SERVER_ERROR = 500
_STREAM_WORDS = ("stream", "partial_images")
_UNKNOWN = "The image may or may not have been made: {}. It was not tried again."


@dataclass(frozen=True, slots=True)
class InputImage:
    """An image that is edited, or a mask."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """A call. Options are as the Images API names them."""

    key: str
    """names the call: an upstream that knows `Idempotency-Key` makes it once"""
    prompt: str
    options: Mapping[str, Any]
    images: Sequence[InputImage] = ()
    """that are edited; none: a new image is made"""
    mask: InputImage | None = None
    partial_images: int = 0

    @property
    def path(self) -> str:
        """Behind the base URL of the upstream."""
        return "/images/edits" if self.images else "/images/generations"

    def fields(self, model: str, *, stream: bool) -> dict[str, Any]:
        """All but the images."""
        streamed = {"stream": True, "partial_images": self.partial_images} if stream else {}
        return {"model": model, "prompt": self.prompt, **self.options, **streamed}

    def body(self, model: str, *, stream: bool) -> aiohttp.FormData | bytes:
        """JSON, or a form with images."""
        fields = self.fields(model, stream=stream)
        if not self.images:
            return orjson.dumps(fields)
        form = aiohttp.FormData()
        for name, value in fields.items():
            form.add_field(name, "true" if value is True else str(value))
        name = "image" if len(self.images) == 1 else "image[]"
        for number, image in enumerate(self.images):
            _add_file(form, name, f"image_{number}", image)
        if self.mask is not None:
            _add_file(form, "mask", "mask", self.mask)
        return form


def _add_file(form: aiohttp.FormData, name: str, filename: str, image: InputImage) -> None:
    ending = image.media_type.rpartition("/")[2]
    form.add_field(
        name, image.content, filename=f"{filename}.{ending}", content_type=image.media_type
    )


@dataclass(frozen=True, slots=True)
class MadeImage:
    """An answer, and who gave it."""

    answer: ImageAnswer
    upstream: str


@dataclass
class _Refused(Exception):
    """An upstream has answered, and made no image."""

    reason: NoImage
    status: int

    @property
    def may_work_elsewhere(self) -> bool:
        return self.reason.code != MODERATION_BLOCKED and (
            self.status in _ELSEWHERE or self.status >= _FIRST_SERVER_ERROR
        )


@dataclass
class ImageUpstreams:
    """The connections of one process."""

    max_bytes: int
    """of an image"""
    _session: aiohttp.ClientSession | None = field(default=None, init=False)

    async def make(
        self, request: ImageRequest, destinations: Sequence[Destination], on_partial: OnPartial
    ) -> MadeImage:
        """The answer of the first upstream that makes the image. Raises NoImage if none does, and
        ToolCallError if nobody knows."""
        refused: _Refused | None = None
        for destination in destinations:
            try:
                answer = await self._make(request, destination, on_partial)
                return MadeImage(answer, destination.upstream.name)
            except _Refused as refusal:
                logger.info(
                    "image_refused",
                    upstream=destination.upstream.name,
                    status=refusal.status,
                    error=str(refusal.reason),
                )
                refused = refused or refusal
                if not refusal.may_work_elsewhere:
                    raise refusal.reason from None
        if refused is None:
            raise NoImage("No route leads to an upstream for the image model.")
        raise refused.reason from None

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()

    async def _make(
        self, request: ImageRequest, destination: Destination, on_partial: OnPartial
    ) -> ImageAnswer:
        if request.partial_images:
            try:
                return await self._call(request, destination, on_partial, stream=True)
            except _Refused as refusal:
                if not any(word in str(refusal.reason).lower() for word in _STREAM_WORDS):
                    raise
        return await self._call(request, destination, on_partial, stream=False)

    async def _call(
        self,
        request: ImageRequest,
        destination: Destination,
        on_partial: OnPartial,
        *,
        stream: bool,
    ) -> ImageAnswer:
        """Raises _Refused, NoImage for an answer without an image, and ToolCallError."""
        try:
            return await self._send(request, destination, on_partial, stream=stream)
        except aiohttp.ClientConnectorError as error:
            raise _Refused(NoImage("The upstream of images cannot be reached."), 503) from error
        except BodyTooLarge:
            raise NoImage("The upstream's answer is too large.") from None
        except UpstreamFailed as error:  # of the splitter
            raise NoImage(str(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ToolCallError(_UNKNOWN.format("the connection to its upstream broke")) from error

    async def _send(
        self,
        request: ImageRequest,
        destination: Destination,
        on_partial: OnPartial,
        *,
        stream: bool,
    ) -> ImageAnswer:
        upstream = destination.upstream
        headers = {**request_headers(upstream), "idempotency-key": request.key}
        if request.images:
            del headers["content-type"]
        async with self._get_session().post(
            f"{upstream.base_url.rstrip('/')}{request.path}",
            params=upstream.plain_query,
            data=await asyncio.to_thread(request.body, destination.model, stream=stream),
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=upstream.connect_timeout.total_seconds()
            ),
        ) as response:
            if response.status not in _MADE:
                raise await _refusal(response, upstream)
            return await self._read(response, upstream, on_partial)

    async def _read(
        self, response: aiohttp.ClientResponse, upstream: UpstreamSettings, on_partial: OnPartial
    ) -> ImageAnswer:
        """The answer in JSON or in a stream, whatever was asked for."""
        limit = _HEAD + self.max_bytes * 4 // 3
        splitter = SseSplitter(limit=limit)
        last: Any = None
        chunks = bounded(response.content.iter_any(), limit * (_MAX_PARTIAL + 1))
        async for chunk in chunks:
            for payload in splitter.feed(chunk):
                last = last or await _answer_in(payload, upstream, on_partial)
        for payload in splitter.flush():
            last = last or await _answer_in(payload, upstream, on_partial)
        return image_of(last)

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A kept connection may end while a request is sent: its outcome would be unknown.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=True,
                trace_configs=[fenced()],
            )
        return self._session


async def _answer_in(payload: bytes, upstream: UpstreamSettings, on_partial: OnPartial) -> Any:
    """The answer in a body or an event; None for a partial image, and for an event that says
    nothing. Raises NoImage for an error."""
    value = await asyncio.to_thread(parse_json, payload)
    if not isinstance(value, dict):
        return value
    if str(value.get("type", "")).endswith(".partial_image") or "partial_image_index" in value:
        if isinstance(data := value.get("b64_json") or value.get("partial_image_b64"), str):
            await on_partial(data)
        return None
    if any(value.get(name) for name in ("b64_json", "url", "data", "images")):
        return value
    if report_of(value).message:
        raise _no_image(payload, upstream, "The upstream's answer has no image.")
    return None


async def _refusal(response: aiohttp.ClientResponse, upstream: UpstreamSettings) -> _Refused:
    raw = await response.content.read(_HEAD)
    reason = f"The upstream of images answered with status {response.status}."
    return _Refused(_no_image(raw, upstream, reason), response.status)


def _no_image(raw: bytes, upstream: UpstreamSettings, reason: str) -> NoImage:
    """The reason in the upstream's words, without its secrets; without words `reason`."""
    report = report_in(raw)
    words = clean_text(without_secrets(excerpt(report.message), secrets_of(upstream)))
    codes = [clean_text(code)[:64] for code in report.codes]
    code = MODERATION_BLOCKED if MODERATION_BLOCKED in codes else next(iter(codes), None)
    return NoImage(words or reason, code)
