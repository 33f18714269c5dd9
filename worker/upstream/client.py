"""Speaking with an upstream: one streamed chat completion per turn, through the openai SDK's transport (design §5).

The SDK does authentication, retries before the first byte, error classes and proxies; its typed iteration is left out, because it
costs five times what raw bytes and msgspec structs do.
"""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import httpx2
import openai
from openai import AsyncAPIResponse, AsyncOpenAI, DefaultAioHttpClient

from models.errors import LimitReached, UpstreamFailed
from models.patience import Patience
from models.settings import LimitSettings, UpstreamSettings
from worker.translation.chunk import Chunk
from worker.upstream.chunks import parse_chunk
from worker.upstream.failures import broken_off, refused, unreachable
from worker.upstream.sse import SseSplitter

_EVENT_LIMIT = 16 * 1024 * 1024
"""Bytes of one upstream event: a whole answer may come as one."""


class Turn:
    """One upstream call, while it is read. `done_seen` says whether the stream closed with `[DONE]`."""

    def __init__(self, client: AsyncOpenAI, body: dict[str, Any], limits: LimitSettings) -> None:
        self._client = client
        self._body = body
        self._limits = limits
        self._splitter = SseSplitter(limit=_EVENT_LIMIT)
        self._heard = False

    @property
    def done_seen(self) -> bool:
        """The upstream said `[DONE]`."""
        return self._splitter.done

    async def chunks(self) -> AsyncGenerator[list[Chunk]]:
        """The chunks of each read, in order. Raises UpstreamFailed or LimitReached; closing the generator closes the connection.

        The first token and every gap between two have their limits; comments count for nothing, and neither does our own back-pressure.
        """
        loop = asyncio.get_running_loop()
        turn_end = loop.time() + self._limits.turn.total_seconds()
        gap = self._limits.token_gap.total_seconds()
        patience = Patience()
        patience.until(min(turn_end, loop.time() + self._limits.first_token.total_seconds()))
        try:
            with patience.lasting():
                async with self._open() as answer:
                    async for said, failure in self._read(answer):
                        if said:
                            self._heard = True
                            patience.rest()
                            yield said
                            patience.until(min(turn_end, loop.time() + gap))
                        if failure is not None:
                            raise failure
        except TimeoutError as error:
            raise self._expired(turn_over=loop.time() >= turn_end) from error
        except openai.APIStatusError as error:
            raise refused(error, self._body["model"]) from error
        except openai.APIConnectionError as error:
            raise unreachable(error) from error
        except (httpx2.HTTPError, OSError) as error:
            raise broken_off() from error

    async def _read(self, answer: AsyncAPIResponse[Any]) -> AsyncGenerator[tuple[list[Chunk], UpstreamFailed | None]]:
        """What each read brings: chunks, and what is wrong after them."""
        response = answer.http_response
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise UpstreamFailed("The upstream sent a compressed stream although none was asked for.", reason="upstream_garbage")
        # Raw: with nothing to decode, every layer left out is one less to pass for each token.
        async for data in response.aiter_raw():
            yield _parsed(self._splitter.feed(data))
            if self._splitter.done:
                return
        yield _parsed(self._splitter.flush())

    def _expired(self, *, turn_over: bool) -> LimitReached:
        limits = self._limits
        if turn_over:
            return LimitReached(f"The model's turn took longer than the limit of {_shown(limits.turn)}.", reason="turn_limit")
        reason, limit = ("token_gap", limits.token_gap) if self._heard else ("first_token", limits.first_token)
        return LimitReached(f"The upstream was silent for longer than the limit of {_shown(limit)} ({reason}).", reason=reason)

    def _open(self) -> Any:
        # extra_body goes out as it is: the SDK would walk a long history once more to transform it
        return self._client.chat.completions.with_streaming_response.create(
            model=self._body["model"], messages=[], stream=True, extra_body=self._body
        )


class Upstream:
    """One configured upstream and its connections."""

    def __init__(self, settings: UpstreamSettings, limits: LimitSettings, streams: int) -> None:
        """`streams`: the most turns at a time."""
        self.settings = settings
        self._limits = limits
        # Our own limits end a silent upstream (Patience); a timer of the transport's for every read would only cost.
        timeouts = httpx2.Timeout(None, connect=settings.connect_timeout.total_seconds(), write=60.0)
        self._client = AsyncOpenAI(
            timeout=timeouts,
            base_url=settings.base_url,
            api_key=settings.api_key.get_secret_value(),
            max_retries=settings.max_retries,
            # No compression: a small body could unpack into more than we have memory for.
            default_headers={"accept-encoding": "identity"},
            http_client=DefaultAioHttpClient(
                limits=httpx2.Limits(max_connections=streams + 16, max_keepalive_connections=64),
                timeout=timeouts,
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


def _shown(limit: timedelta) -> str:
    return f"{limit.total_seconds():g} s"
