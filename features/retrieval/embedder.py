"""Embeddings of texts: calls of `/v1/embeddings` of the upstreams that serve a model."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import aiohttp
import orjson
import structlog

from features.retrieval.text_splitter import TextSplitter
from models.config.retrieval import RetrievalSettings
from models.config.routes import Destination, Route
from models.config.upstream import UpstreamSettings
from models.config.upstream_access import (
    CREDENTIAL_STATUSES,
    excerpt,
    request_headers,
    secrets_of,
    without_secrets,
)
from models.fence import fenced
from models.projects.routes import ProjectRoutes
from models.upstream_errors.frames import ErrorReport, report_of, report_of_text
from models.upstream_errors.words import is_refused, is_too_large
from models.wire.json_input import clean_text
from models.wire.proxied_usage import bounded_count

logger = structlog.get_logger()

MAX_DIMENSIONS = 4000
"""Most dimensions of an embedding: as many half-precision numbers as fit into a row of a page, and
as an HNSW index of pgvector takes."""
_UNEQUAL = f"the upstream's embeddings have different dimensions, or more than {MAX_DIMENSIONS}"
_BYTES_PER_NUMBER = 64
"""More than a number takes in JSON."""
_HEAD_BYTES = 64 * 1024
_TEMPORARY = frozenset((408, 409, 425, 429)) | CREDENTIAL_STATUSES
"""Statuses below 500 after which the same request may succeed later: also once the operator has
corrected the credential."""
_TOO_LARGE_STATUS = 413
_FIRST_SERVER_ERROR = 500
_OVERLOAD = frozenset((503, 529))
"""Server errors that say nothing about the texts."""
_MAX_WAIT = 600.0
"""Seconds: the longest `Retry-After` that is kept to."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embeddings of some texts, in their order."""

    vectors: list[str]
    """each as JSON, which is also how pgvector writes one"""
    dimensions: int
    tokens: int
    """as the upstream has counted them; 0 if it does not"""
    upstream: str


@dataclass(frozen=True, slots=True)
class TextOwner:
    """The project that has texts. Only the upstreams of its routes get them."""

    project: UUID
    routes: dict[str, Route] | None
    """its own ones, as its policy has them; None: those of the server"""
    api_key: UUID | None = None
    """the key with which its usage counts; None: no key"""


class EmbeddingsUnavailable(Exception):
    """No upstream makes embeddings now; one may do so later. `wait`: seconds, if it has named
    them. `may_be_texts`: it has answered, with an error of its own, and embeds other texts."""

    def __init__(self, message: str, wait: float = 0.0, *, may_be_texts: bool = False) -> None:
        super().__init__(message)
        self.wait = wait
        self.may_be_texts = may_be_texts


class EmbeddingsRefused(Exception):
    """An upstream refuses the request, or answers with something that is no embeddings: it would
    do so again."""


class _TooLarge(EmbeddingsRefused):
    """The texts are too large for the upstream, together or one of them."""


class _ServerError(EmbeddingsUnavailable):
    """The upstream has answered with an error of its own (5xx), whose cause may be the texts."""


class Embedder:
    """Calls upstreams for one process."""

    def __init__(self, settings: RetrievalSettings, routes: ProjectRoutes) -> None:
        self._timeout = settings.embedding_time.total_seconds()
        self._routes = routes
        self._session: aiohttp.ClientSession | None = None

    async def embed(
        self, owner: TextOwner, texts: Sequence[str], model: str, dimensions: int | None
    ) -> Embeddings:
        """The embeddings of at least one text. `dimensions`: what is asked for; None: nothing.
        Raises EmbeddingsUnavailable or EmbeddingsRefused."""
        routes = self._routes.of(owner.project, owner.routes)
        destinations = [each for each in routes.find(model) if each.upstream.base_url]
        if not destinations:
            raise EmbeddingsRefused(f"no route leads to an upstream for the model '{model}'")
        unavailable: EmbeddingsUnavailable | None = None
        for destination in destinations:
            try:
                return await self._embed(destination, texts, dimensions)
            except EmbeddingsUnavailable as error:
                logger.info(
                    "embeddings_unavailable",
                    upstream=destination.upstream.name,
                    model=destination.model,
                    error=str(error),
                )
                unavailable = unavailable or error
        assert unavailable is not None  # there is a destination
        raise unavailable

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()

    async def _embed(
        self, destination: Destination, texts: Sequence[str], dimensions: int | None
    ) -> Embeddings:
        """The embeddings of texts of any size. What is too large for the upstream is halved, until
        it is not: first the list, then each text."""
        splitter = TextSplitter(texts)
        embedded: list[Embeddings] = []
        while (batch := splitter.next_batch()) is not None:
            try:
                made = await self._call(destination, batch, dimensions)
            except _TooLarge:
                if not splitter.split():
                    raise
                continue
            except _ServerError as error:
                if not await self._embeds_a_word(destination, dimensions):
                    raise
                if not splitter.split():
                    raise EmbeddingsUnavailable(
                        str(error), error.wait, may_be_texts=True
                    ) from error
                continue
            splitter.take(made.vectors)
            embedded.append(made)
        if len({each.dimensions for each in embedded}) > 1:
            raise EmbeddingsRefused(_UNEQUAL)
        return Embeddings(
            await asyncio.to_thread(splitter.vectors),
            embedded[0].dimensions,
            sum(each.tokens for each in embedded),
            destination.upstream.name,
        )

    async def _embeds_a_word(self, destination: Destination, dimensions: int | None) -> bool:
        """Whether the upstream makes embeddings of anything now."""
        try:
            await self._call(destination, ["word"], dimensions)
        except (EmbeddingsUnavailable, EmbeddingsRefused):
            return False
        return True

    async def _call(
        self, destination: Destination, texts: Sequence[str], dimensions: int | None
    ) -> Embeddings:
        body: dict[str, Any] = {"model": destination.model, "input": list(texts)}
        if dimensions is not None:
            body["dimensions"] = dimensions
        data = await asyncio.to_thread(_encoded, body)
        limit = _HEAD_BYTES + len(texts) * (dimensions or MAX_DIMENSIONS) * _BYTES_PER_NUMBER
        try:
            async with asyncio.timeout(self._timeout):
                raw = await self._post(destination, data, limit)
        except TimeoutError:
            raise EmbeddingsUnavailable("the upstream did not answer in time") from None
        except (aiohttp.ClientError, OSError) as error:
            kind = type(error).__name__
            raise EmbeddingsUnavailable(f"the upstream cannot be reached ({kind})") from error
        vectors, tokens = await asyncio.to_thread(_parsed, raw, len(texts))
        size = 0 if not vectors else vectors[0].count(",") + 1
        if any(vector.count(",") + 1 != size for vector in vectors) or size > MAX_DIMENSIONS:
            raise EmbeddingsRefused(_UNEQUAL)
        return Embeddings(vectors, size, tokens, destination.upstream.name)

    async def _post(self, destination: Destination, data: bytes, limit: int) -> bytes:
        upstream = destination.upstream
        async with self._get_session().post(
            f"{upstream.base_url.rstrip('/')}/embeddings",
            params=upstream.plain_query,
            data=data,
            headers=request_headers(upstream),
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=upstream.connect_timeout.total_seconds()
            ),
        ) as response:
            raw = await _read(response, limit)
            if response.status == 200:
                return raw
            wait = response.headers.get("retry-after", "")
            seconds = float(wait) if wait.isascii() and wait.isdigit() else 0.0
            raise _failure(response.status, _report(raw), min(seconds, _MAX_WAIT), upstream)

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), trust_env=True, trace_configs=[fenced()]
            )
        return self._session


def _encoded(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body)


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body. Raises EmbeddingsRefused if it is longer than `limit` bytes."""
    pieces = bytearray()
    async for piece in response.content.iter_any():
        pieces += piece
        if len(pieces) > limit:
            raise EmbeddingsRefused("the upstream's answer is too long")
    return bytes(pieces)


def _parsed(raw: bytes, count: int) -> tuple[list[str], int]:
    """The embeddings in order, and the tokens. Raises EmbeddingsRefused."""
    try:
        body = orjson.loads(raw)
        data = sorted(body["data"], key=lambda each: int(each["index"]))
        vectors = [_vector(each["embedding"]) for each in data]
        usage = body.get("usage") or {}
        tokens = usage.get("prompt_tokens", usage.get("total_tokens", 0))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise EmbeddingsRefused("the upstream's answer has no embeddings") from None
    if len(vectors) != count:
        raise EmbeddingsRefused(f"the upstream made {len(vectors)} embeddings of {count} texts")
    return vectors, bounded_count(tokens) if type(tokens) is int else 0


def _vector(values: list[float]) -> str:
    """Raises TypeError or ValueError if they are no embedding: pgvector's numbers end at 65504, and
    a vector without a direction has no cosine distance."""
    length = math.hypot(*values)
    if not 0 < length < 65_504:
        raise ValueError("no direction")
    return orjson.dumps(values).decode()


def _failure(
    status: int, report: ErrorReport, wait: float, upstream: UpstreamSettings
) -> EmbeddingsUnavailable | EmbeddingsRefused:
    """What an answer means that is not 200."""
    words = clean_text(without_secrets(excerpt(report.message), secrets_of(upstream)))
    message = words or f"status {status}"
    if status in _TEMPORARY:
        return EmbeddingsUnavailable(message, wait)
    if status == _TOO_LARGE_STATUS or is_too_large(report.message, report.codes):
        return _TooLarge(message)
    if status < _FIRST_SERVER_ERROR or is_refused(report.message):
        return EmbeddingsRefused(message)
    if status in _OVERLOAD or wait:
        return EmbeddingsUnavailable(message, wait)
    return _ServerError(message)


def _report(raw: bytes) -> ErrorReport:
    """What an error's body says."""
    text = raw.decode(errors="replace").strip()
    try:
        return report_of(json.loads(text))
    except (ValueError, RecursionError):
        return ErrorReport() if text.startswith(("{", "[")) else report_of_text(text)
