"""Embeddings of texts: calls of `/v1/embeddings` of the upstreams that serve a model."""

import asyncio
import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import aiohttp
import orjson
import structlog

from models.config.feature_groups import RetrievalSettings
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
from models.http_bodies import BodyTooLarge, read_bounded
from models.prices import PriceList, UsedAmounts
from models.projects.routes import ProjectRoutes
from models.upstream_errors.frames import ErrorReport, report_of, report_of_text
from models.upstream_errors.words import is_refused, is_too_large
from models.wire.json_input import clean_text
from models.wire.token_counts import bounded_count

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
LEAST_CHARACTERS = 64
"""A text that is shorter is not divided."""
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
    cost: int | None = None
    """in billionths of the currency (models/prices.py); None: not known"""


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

    def __init__(
        self, settings: RetrievalSettings, routes: ProjectRoutes, prices: PriceList | None = None
    ) -> None:
        """`prices` None: no cost is known."""
        self._prices = prices
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
                embeddings = await self._embed(destination, texts, dimensions)
            except EmbeddingsUnavailable as error:
                logger.info(
                    "embeddings_unavailable",
                    upstream=destination.upstream.name,
                    model=destination.model,
                    error=str(error),
                )
                unavailable = unavailable or error
            else:
                return replace(embeddings, cost=self._cost(model, embeddings))
        assert unavailable is not None  # there is a destination
        raise unavailable

    def _cost(self, model: str, embeddings: Embeddings) -> int | None:
        if self._prices is None:
            return None
        tokens = embeddings.tokens
        amounts = UsedAmounts(input_tokens=tokens, has_tokens=tokens > 0)
        return self._prices.cost(model, embeddings.upstream, amounts)

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
        data = await asyncio.to_thread(orjson.dumps, body)
        limit = _HEAD_BYTES + len(texts) * (dimensions or MAX_DIMENSIONS) * _BYTES_PER_NUMBER
        try:
            async with asyncio.timeout(self._timeout):
                raw = await self._post(destination, data, limit)
        except BodyTooLarge:
            raise EmbeddingsRefused("the upstream's answer is too long") from None
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
            raw = await read_bounded(response.content.iter_any(), limit)
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


@dataclass(frozen=True, slots=True)
class _Part:
    text: str
    owner: int
    """the index of the text that it is a part of"""


class TextSplitter:
    """Divides texts that are too large for an upstream's embeddings, and joins their embeddings.

    Many models take 512 tokens at most, and some servers as many in a batch, while a chunk of a
    file has 800. A text whose parts were embedded has the mean of their embeddings, each counting
    with its length: so a chunk stays one chunk, with the number and the text that the file gives
    it. Bounded: each split halves a list or a text. After the first text that was too large all
    others are as short as its halves, so they need no failed request of their own.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._waiting = deque([[_Part(text, at) for at, text in enumerate(texts)]])
        """Batches, in order."""
        self._most = len(texts)
        """Parts in one batch."""
        self._embedded: list[list[tuple[int, str]]] = [[] for _ in texts]
        """Of each text: the lengths of its parts, and their embeddings as JSON."""
        self._limit: int | None = None
        """Characters that a part may have, once one was too large."""

    def next_batch(self) -> list[str] | None:
        """The texts that are to be embedded next; None if all are."""
        if not self._waiting:
            return None
        parts = [part for each in self._waiting.popleft() for part in self._cut(each)]
        starts = range(0, len(parts), self._most)
        self._waiting.extendleft(parts[at : at + self._most] for at in reversed(starts))
        return [part.text for part in self._waiting[0]]

    def split(self) -> bool:
        """The batch was too large: halves it. False if it cannot be halved any more."""
        batch = self._waiting[0]
        middle = len(batch) // 2
        if middle:
            self._waiting[0] = batch[middle:]
            self._waiting.appendleft(batch[:middle])
            return True
        size = len(batch[0].text)
        self._limit = math.ceil(size / 2)
        return size >= LEAST_CHARACTERS

    def take(self, vectors: Sequence[str]) -> None:
        """The embeddings of the batch."""
        for part, vector in zip(self._waiting.popleft(), vectors, strict=True):
            self._embedded[part.owner].append((len(part.text), vector))

    def vectors(self) -> list[str]:
        """The embedding of each text, as JSON. Takes milliseconds for long lists of parts."""
        return [parts[0][1] if len(parts) == 1 else _mean(parts) for parts in self._embedded]

    def _cut(self, part: _Part) -> list[_Part]:
        """The part, or shorter ones if it is longer than the limit. None of them is of spaces."""
        if self._limit is None or len(part.text) <= self._limit:
            return [part]
        middle = len(part.text) // 2
        space = part.text.rfind(" ", middle - middle // 4, middle)
        at = middle if space < 0 else space + 1
        halves = (part.text[:at], part.text[at:])
        return [
            piece
            for half in halves
            if not half.isspace()
            for piece in self._cut(_Part(half, part.owner))
        ]


def _mean(parts: Sequence[tuple[int, str]]) -> str:
    """The mean of embeddings, weighted by length, as long as they are on average."""
    vectors = [orjson.loads(vector) for _, vector in parts]
    weights = [weight / sum(length for length, _ in parts) for weight, _ in parts]
    mean = [
        math.fsum(map(math.prod, zip(weights, numbers, strict=True)))
        for numbers in zip(*vectors, strict=True)
    ]
    size = math.hypot(*mean)
    if not size:
        return parts[0][1]  # opposite directions: any of them
    wanted = math.fsum(w * math.hypot(*v) for w, v in zip(weights, vectors, strict=True))
    return orjson.dumps([number * wanted / size for number in mean]).decode()
