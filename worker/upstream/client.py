"""Speaking with an upstream: one streamed answer per turn, in chat completions or in the Responses API, through the openai SDK's transport (design §5).

The SDK does authentication, retries before the first byte, error classes and proxies; its typed iteration is left out, because it
costs five times what raw bytes and msgspec structs do.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any

import aiohttp
import httpx2
import openai
from openai import AsyncAPIResponse, AsyncOpenAI, DefaultAioHttpClient

from models.config.groups import LimitSettings
from models.config.upstream import UpstreamSettings
from models.deadlines import IdleTimeout
from models.errors import LimitReached, UpstreamFailed
from worker.translation.chat.chunk import Chunk
from worker.translation.upstream_events import UpstreamEvent
from worker.upstream.chat_chunks import parse_chunk
from worker.upstream.counts import count_upstream
from worker.upstream.failures import (
    broken_off,
    failure_of_status,
    redacted,
    sanitised,
    unintelligible,
    unreachable,
)
from worker.upstream.responses_events import parse_event
from worker.upstream.sse import SseSplitter

StreamEvent = Chunk | UpstreamEvent
"""What one event of an upstream says, by the API it speaks."""

_EVENT_LIMIT = 16 * 1024 * 1024
"""Bytes of one upstream event: a whole answer may come as one."""

_FINAL_GAP = 10.0
"""Seconds an upstream has for usage and `[DONE]` once the model has said why it stopped."""


class UpstreamCall:
    """One upstream call, while it is read. `done_seen` says whether the stream closed with `[DONE]`."""

    def __init__(
        self, client: AsyncOpenAI, body: dict[str, Any], limits: LimitSettings, *, native: bool
    ) -> None:
        """`native`: the upstream speaks the Responses API."""
        self._client = client
        self._body = body
        self._native = native
        self._limits = limits
        # The last event of a native upstream repeats all that was said.
        self._splitter = SseSplitter(
            limit=max(_EVENT_LIMIT, limits.output) if native else _EVENT_LIMIT
        )
        self._has_output = False
        """The model has said something."""
        self._finished = False
        """The model has said why it stopped: whatever becomes of the connection now, the turn is whole."""

    @property
    def done_seen(self) -> bool:
        """The upstream said `[DONE]`."""
        return self._splitter.done

    async def chunks(self) -> AsyncGenerator[list[StreamEvent]]:
        """The chunks of each read, in order. Raises UpstreamFailed or LimitReached; closing the generator closes the connection.

        The first token and every gap between two have their limits. Comments and chunks without a word count for nothing, and neither
        does our own back-pressure.
        """
        loop = asyncio.get_running_loop()
        turn_end = loop.time() + self._limits.turn.total_seconds()
        gap = self._limits.token_gap.total_seconds()
        idle_timeout = IdleTimeout()
        deadline = loop.time() + self._limits.first_token.total_seconds()
        idle_timeout.set_deadline(min(turn_end, deadline))
        try:
            with idle_timeout.extend():
                async with self._send() as answer:
                    async for events, failure in self._read(answer):
                        if events:
                            idle_timeout.pause()
                            began = loop.time()
                            yield events
                            if self._note_progress(events):
                                deadline = loop.time() + (
                                    min(gap, _FINAL_GAP) if self._finished else gap
                                )
                            else:
                                deadline += loop.time() - began
                            idle_timeout.set_deadline(min(turn_end, deadline))
                        if failure is not None:
                            raise failure
        except (
            TimeoutError,
            openai.APIError,
            httpx2.HTTPError,
            aiohttp.ClientError,
            UnicodeError,
            OSError,
        ) as error:
            if not self._finished:
                raise self._error_of(error, turn_over=loop.time() >= turn_end) from error
        except UpstreamFailed as failure:
            raise redacted(failure, self._client.api_key) from failure.__cause__

    def _note_progress(self, events: list[StreamEvent]) -> bool:
        """Whether these chunks hold a word, or the model's last; many servers send empty ones to keep the line open."""
        spoke = False
        for chunk in events:
            spoke = spoke or chunk.has_output
            self._finished = self._finished or chunk.is_last
        self._has_output |= spoke
        return spoke

    def _error_of(self, error: Exception, *, turn_over: bool) -> UpstreamFailed | LimitReached:
        """What broke the turn, in our words."""
        match error:
            case TimeoutError():
                return self._timeout_error(turn_over=turn_over)
            case openai.APIStatusError():
                return redacted(failure_of_status(error, self._body["model"]), self._client.api_key)
            case openai.APIConnectionError():
                return unreachable(error)
            case aiohttp.ClientResponseError() | UnicodeError():
                return unintelligible()
            case _:
                return broken_off()

    async def _read(
        self, answer: AsyncAPIResponse[Any]
    ) -> AsyncGenerator[tuple[list[StreamEvent], UpstreamFailed | None]]:
        """What each read brings: chunks, and what is wrong after them."""
        response = answer.http_response
        if response.headers.get("content-encoding", "identity").strip().lower() not in (
            "",
            "identity",
        ):
            raise UpstreamFailed(
                "The upstream sent a compressed stream although none was asked for.",
                reason="upstream_garbage",
            )
        # Raw: with nothing to decode, every layer left out is one less to pass for each token.
        async for data in response.aiter_raw():
            yield self._parse(self._splitter.feed(data))
            if self._splitter.done:
                return
        yield self._parse(self._splitter.flush())

    def _timeout_error(self, *, turn_over: bool) -> LimitReached:
        limits = self._limits
        if turn_over:
            return LimitReached(
                f"The model's turn took longer than the limit of {_seconds(limits.turn)}.",
                reason="turn_limit",
            )
        reason, limit = (
            ("token_gap", limits.token_gap)
            if self._has_output
            else ("first_token", limits.first_token)
        )
        return LimitReached(
            f"The upstream was silent for longer than the limit of {_seconds(limit)} ({reason}).",
            reason=reason,
        )

    def _parse(self, payloads: list[bytes]) -> tuple[list[StreamEvent], UpstreamFailed | None]:
        """What one read says, and what is wrong with the payload after that: what was said before a failure still counts."""
        parse: Callable[[bytes], StreamEvent] = parse_event if self._native else parse_chunk
        events: list[StreamEvent] = []
        for payload in payloads:
            try:
                events.append(parse(payload))
            except UpstreamFailed as failure:
                return events, failure
        return events, None

    def _send(self) -> Any:
        # extra_body goes out as it is: the SDK would walk a long history once more to transform it
        if self._native:
            return self._client.responses.with_streaming_response.create(
                model=self._body["model"], input="", stream=True, extra_body=self._body
            )
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
        timeouts = httpx2.Timeout(
            None, connect=settings.connect_timeout.total_seconds(), write=60.0
        )
        self._http = DefaultAioHttpClient(
            limits=httpx2.Limits(max_connections=streams + 16, max_keepalive_connections=64),
            timeout=timeouts,
            follow_redirects=False,
            event_hooks={"response": [sanitised]},
        )
        self._client = AsyncOpenAI(
            timeout=timeouts,
            base_url=settings.base_url,
            api_key=settings.api_key.get_secret_value(),
            max_retries=settings.max_retries,
            # No compression: a small body could unpack into more than we have memory for.
            default_headers={**settings.plain_headers, "accept-encoding": "identity"},
            default_query=dict(settings.query),
            http_client=self._http,
        )

    def call(self, body: dict[str, Any]) -> UpstreamCall:
        """The next call, not yet begun; `body` as worker/translation makes it for the API that the upstream speaks."""
        return UpstreamCall(self._client, body, self._limits, native=self.is_native)

    async def count(self, body: dict[str, Any]) -> int | None:
        """Tokens of a turn's body as the upstream counts them; None where it offers no count, or gives none now."""
        return await count_upstream(self._http, self.settings, body)

    @property
    def is_native(self) -> bool:
        """Whether it speaks the Responses API itself."""
        return self.settings.api == "responses"

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()


def _seconds(limit: timedelta) -> str:
    return f"{limit.total_seconds():g} s"
