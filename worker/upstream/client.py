"""Speaking with an upstream: one streamed chat completion per turn, through the openai SDK's transport (design §5).

The SDK does authentication, retries before the first byte, error classes and proxies; its typed iteration is left out, because it
costs five times what raw bytes and msgspec structs do.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, TypeVar

import httpx2
import openai
from openai import AsyncOpenAI, DefaultAioHttpClient

from models.errors import LimitReached, UpstreamFailed
from models.settings import LimitSettings, UpstreamSettings
from worker.translation.chunk import Chunk
from worker.upstream.chunks import parse_chunk
from worker.upstream.failures import broken_off, refused, unreachable
from worker.upstream.sse import SseSplitter

T = TypeVar("T")

_EVENT_LIMIT = 16 * 1024 * 1024
"""Bytes of one upstream event: a whole answer may come as one."""


class Turn:
    """One upstream call, while it is read. `done_seen` says whether the stream closed with `[DONE]`."""

    def __init__(self, client: AsyncOpenAI, body: dict[str, Any], limits: LimitSettings) -> None:
        self._client = client
        self._body = body
        self._limits = limits
        self._splitter = SseSplitter(limit=_EVENT_LIMIT)
        self._silence = limits.first_token
        self._silence_limit = "first_token"

    @property
    def done_seen(self) -> bool:
        """The upstream said `[DONE]`."""
        return self._splitter.done

    async def chunks(self) -> AsyncGenerator[list[Chunk]]:
        """The chunks of each read, in order. Raises UpstreamFailed or LimitReached; closing the generator closes the connection."""
        try:
            async with AsyncExitStack() as connection:
                async for said in self._read(connection):
                    yield said
        except openai.APIStatusError as error:
            raise refused(error, self._body["model"]) from error
        except openai.APITimeoutError as error:
            raise unreachable("The upstream did not answer in time.", status=504) from error
        except openai.APIConnectionError as error:
            raise unreachable("The upstream could not be reached.", status=502) from error
        except (httpx2.HTTPError, OSError) as error:
            raise broken_off() from error

    async def _read(self, connection: AsyncExitStack) -> AsyncGenerator[list[Chunk]]:
        loop = asyncio.get_running_loop()
        turn_end = loop.time() + self._limits.turn.total_seconds()
        answer = await self._in_time(connection.enter_async_context(self._open()), turn_end)
        reads = answer.iter_bytes()
        while (data := await self._in_time(anext(reads, None), turn_end)) is not None:
            said, failure = _parsed(self._splitter.feed(data))
            if said:
                self._silence, self._silence_limit = self._limits.token_gap, "token_gap"
                yield said
            if failure is not None:
                raise failure
            if self._splitter.done:
                return
        rest, failure = _parsed(self._splitter.flush())
        if rest:
            yield rest
        if failure is not None:
            raise failure

    async def _in_time(self, step: Awaitable[T], turn_end: float) -> T:
        """One step of the far side, within the turn and within the silence it is allowed. Our own back-pressure does not count as its silence."""
        silent_until = asyncio.get_running_loop().time() + self._silence.total_seconds()
        try:
            async with asyncio.timeout_at(min(turn_end, silent_until)):
                return await step
        except TimeoutError as error:
            if turn_end <= silent_until:
                raise LimitReached(
                    f"The model's turn took longer than the limit of {_shown(self._limits.turn)}.", reason="turn_limit"
                ) from error
            raise LimitReached(
                f"The upstream was silent for longer than the limit of {_shown(self._silence)} ({self._silence_limit}).",
                reason=self._silence_limit,
            ) from error

    def _open(self) -> Any:
        # extra_body goes out as it is: the SDK would walk a long history once more to transform it
        return self._client.chat.completions.with_streaming_response.create(
            model=self._body["model"], messages=[], stream=True, extra_body=self._body, timeout=_timeouts(self._limits)
        )


class Upstream:
    """One configured upstream and its connections."""

    def __init__(self, settings: UpstreamSettings, limits: LimitSettings, streams: int) -> None:
        """`streams`: the most turns at a time."""
        self.settings = settings
        self._limits = limits
        self._client = AsyncOpenAI(
            base_url=settings.base_url,
            api_key=settings.api_key.get_secret_value(),
            max_retries=settings.max_retries,
            # No compression: a small body could unpack into more than we have memory for.
            default_headers={"accept-encoding": "identity"},
            http_client=DefaultAioHttpClient(
                limits=httpx2.Limits(max_connections=streams + 16, max_keepalive_connections=64),
                timeout=httpx2.Timeout(None, connect=settings.connect_timeout.total_seconds()),
                follow_redirects=False,
            ),
        )

    def turn(self, body: dict[str, Any]) -> Turn:
        """The next call, not yet begun; `body` as worker/translation/request.py makes it."""
        return Turn(self._client, body, self._limits)

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()


def _parsed(payloads: list[bytes]) -> tuple[list[Chunk], UpstreamFailed | None]:
    """The chunks of one read, and what is wrong with the payload after them: what was said before a failure still counts."""
    chunks: list[Chunk] = []
    for payload in payloads:
        try:
            chunks.append(parse_chunk(payload))
        except UpstreamFailed as failure:
            return chunks, failure
    return chunks, None


def _timeouts(limits: LimitSettings) -> httpx2.Timeout:
    """Our own limits end a silent upstream; the transport's only stand behind them."""
    return httpx2.Timeout(max(limits.first_token, limits.token_gap).total_seconds() + 10, connect=10.0, write=60.0, pool=60.0)


def _shown(limit: timedelta) -> str:
    return f"{limit.total_seconds():g} s"
