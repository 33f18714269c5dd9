"""Calls an upstream: one streamed response per turn, in the API that it speaks
(docs/architecture.md)."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

from models.config.dialect import PATHS, Api
from models.config.groups import LimitSettings
from models.config.upstream import UpstreamSettings
from models.config.upstream_access import secrets_of
from models.errors import LimitReached, UpstreamFailed
from models.http_bodies import is_uncompressed
from models.tasks import IdleTimeout
from models.upstream_errors.frames import page_title
from worker.metrics import UPSTREAM_RETRIES
from worker.translation.request_parameters import Dialect
from worker.translation.upstream_events import ChatChunk, UpstreamEvent
from worker.upstream.body_reader import Arrivals, BodyReader, Pause
from worker.upstream.chat_chunks import ChunkReader
from worker.upstream.error_rules import failure_of_page, redacted
from worker.upstream.failures import (
    CONNECTION_ERRORS,
    compressed,
    failure_of_connection,
    shown_seconds,
    turn_limit_reached,
)
from worker.upstream.messages_chunks import MessagesChunkReader
from worker.upstream.plain_call import PlainCaller, count_upstream
from worker.upstream.request_body import RequestFiles
from worker.upstream.request_sender import NO_FILES, RequestSender, close_response
from worker.upstream.responses_events import ResponsesEventReader
from worker.upstream.sse import SseSplitter

StreamEvent = ChatChunk | UpstreamEvent
"""One event of an upstream, by the API that it speaks."""
Take = Callable[[Sequence[StreamEvent]], Pause | None]
"""Takes the events of one read. Returns what to await before the next read, if anything."""

_EVENT_LIMIT = 16 * 1024 * 1024
"""Bytes of one upstream event: a whole response may come as one."""

_FINAL_GAP = 10.0
"""Seconds that an upstream has for usage and `[DONE]` after the model's end."""
_DIALECT_FIELDS = tuple(field.name for field in fields(Dialect))


class UpstreamCall:
    """One call of an upstream, while its response is read."""

    def __init__(
        self,
        sender: RequestSender,
        body: dict[str, Any],
        limits: LimitSettings,
        secrets: tuple[str, ...],
        *,
        api: Api,
        traceparent: str | None,
        files: RequestFiles,
    ) -> None:
        """`secrets`: they are removed from messages. `files`: those in the body. `api`: the
        one that the upstream speaks. `traceparent`: a header to send."""
        self._sender = sender
        self._path = PATHS[api]
        self._body = body
        self._traceparent = traceparent
        self._files = files
        self._limits = limits
        self._secrets = secrets
        self._loop = asyncio.get_running_loop()
        self._idle_timeout = IdleTimeout()
        self._turn_end = math.inf
        """When the turn is over at the latest, in the event loop's time."""
        self._gap = limits.token_gap.total_seconds()
        """Seconds until the next event with output is due."""
        self._silence_end = math.inf
        """When that is, in the event loop's time."""
        self._is_waiting = False
        """The taker of the events lets the call wait."""
        # The last event of a native upstream repeats the whole output.
        self._reader = _reader(api)
        self._splitter = SseSplitter(
            limit=max(_EVENT_LIMIT, limits.output) if api == "responses" else _EVENT_LIMIT
        )
        self._is_labelled_page = False
        """The content type of the answer is that of a web page."""
        self._has_output = False
        """An event had output of the model."""
        self._finished = False
        """The model has ended its turn. An error of the connection does not matter any more."""

    @property
    def done_seen(self) -> bool:
        """Whether the stream contained `[DONE]`, or the event that ends a message."""
        return self._splitter.done or (
            isinstance(self._reader, MessagesChunkReader) and self._reader.done
        )

    def redact(self, failure: UpstreamFailed) -> None:
        """Removes the secrets from the message of a failure that the turn has made of the
        upstream's words."""
        redacted(failure, self._secrets)

    async def read(self, take: Take) -> None:
        """Sends the request, and gives the events of each read to `take`, in order. Raises
        UpstreamFailed, LimitReached, and what `take` and its pauses raise. Cancelling closes the
        connection.

        The first token and each gap between two have time limits. Comments and events without
        output do not extend them, and pauses do not count.
        """
        self._take = take
        now = self._loop.time()
        self._turn_end = now + self._limits.turn.total_seconds()
        self._silence_end = now + self._limits.first_token.total_seconds()
        self._move_deadline()
        with self._translated_errors(), self._idle_timeout.extend():
            response = await self._sender.send(
                self._path, self._body, self._traceparent, self._files
            )
            try:
                if not is_uncompressed(response.headers):
                    raise compressed()
                self._is_labelled_page = response.content_type == "text/html"
                self._body_reader = BodyReader(response, self._use, self._sender.arrivals)
                await self._body_reader.run()
            finally:
                if self.done_seen:
                    self._sender.close_soon(response)
                else:
                    await close_response(response)

    def _use(self, data: bytes) -> Pause | None:
        """Gives the events of one read on."""
        events, failure = self._parse(data)
        if self.done_seen:
            self._body_reader.end()
        pause = self._take(events) if events else None
        if self._note_progress(events):
            self._silence_end = self._loop.time() + self._gap
            self._move_deadline()
        if pause is not None:
            return partial(self._wait, pause, failure)
        if failure is not None:
            raise failure
        return None

    async def _wait(self, pause: Pause, failure: UpstreamFailed | None) -> None:
        """Waits, then goes on, or raises the failure behind the events that were given."""
        self._idle_timeout.pause()
        began_at = self._loop.time()
        self._is_waiting = True
        await pause()
        self._is_waiting = False
        self._silence_end += self._loop.time() - began_at
        self._move_deadline()
        if failure is not None:
            raise failure

    def _move_deadline(self) -> None:
        self._idle_timeout.set_deadline(min(self._turn_end, self._silence_end))

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turns errors of the connection into ours. After the model's end they are ignored: the
        turn is complete."""
        try:
            yield
        except CONNECTION_ERRORS as error:
            if self._is_waiting:
                raise  # it is an error of the pause
            if not self._finished:
                raise self._error_of(error) from error
        except UpstreamFailed as failure:
            raise redacted(failure, self._secrets) from failure.__cause__

    def _note_progress(self, events: Sequence[StreamEvent]) -> bool:
        """Whether these events have output. Many servers send empty ones to keep the connection
        open."""
        has_output = False
        for event in events:
            has_output = has_output or event.has_output
            if event.is_last:
                self._finished = True
                self._gap = min(self._gap, _FINAL_GAP)
        self._has_output |= has_output
        return has_output

    def _error_of(self, error: Exception) -> UpstreamFailed | LimitReached:
        """Our error for one of the connection."""
        if isinstance(error, TimeoutError):
            return self._timeout_error()
        failure = self._page_failure() or failure_of_connection(error)
        return redacted(failure, self._secrets)

    def _timeout_error(self) -> LimitReached:
        limits = self._limits
        if self._turn_end <= self._silence_end:
            return turn_limit_reached(limits)
        reason, limit = (
            ("token_gap", limits.token_gap)
            if self._has_output
            else ("first_token", limits.first_token)
        )
        return LimitReached(
            "The upstream was silent for longer than the limit of "
            f"{shown_seconds(limit)} ({reason}).",
            reason=reason,
        )

    def _page_failure(self) -> UpstreamFailed | None:
        """The failure for a web page in the place of a stream. None for any other answer, also for
        a stream that is labelled as a page."""
        text = self._splitter.text
        if text is None:
            return None
        page = text.decode(errors="replace")
        is_page = self._is_labelled_page or page_title(page) is not None
        return failure_of_page(page) if is_page else None

    def _parse(self, data: bytes) -> tuple[list[StreamEvent], UpstreamFailed | None]:
        """The events of one read, and the failure of the payload after them: events before a
        failure still count. An empty read is the end of the stream."""
        events: list[StreamEvent] = []
        payloads = self._splitter.feed(data) if data else self._splitter.flush()
        if not data and (page := self._page_failure()) is not None:
            return events, page
        for payload in payloads:
            try:
                event = self._reader.read(payload)
            except UpstreamFailed as failure:
                return events, self._page_failure() or failure
            if isinstance(event, UpstreamEvent):
                self._redact_end(event)
            events.append(event)
        if isinstance(self._reader, ChunkReader) and self._reader.waits:
            is_over = not data or self._splitter.done or any(event.is_last for event in events)
            events += self._reader.rest() if is_over else ()
        return events, None

    def _redact_end(self, event: UpstreamEvent) -> None:
        """Removes the secrets from the failure that a terminal event reports."""
        if event.terminal is not None and event.terminal.failure is not None:
            redacted(event.terminal.failure, self._secrets)


def _reader(api: Api) -> ChunkReader | MessagesChunkReader | ResponsesEventReader:
    match api:
        case "responses":
            return ResponsesEventReader()
        case "messages":
            return MessagesChunkReader()
        case _:
            return ChunkReader()


def dialect_of(upstream: UpstreamSettings) -> Dialect:
    """What the translation of a request has to know of this upstream: its settings of the same
    names."""
    return Dialect(**{name: getattr(upstream, name) for name in _DIALECT_FIELDS})


class Upstream:
    """One configured upstream and its connections."""

    def __init__(
        self,
        settings: UpstreamSettings,
        limits: LimitSettings,
        streams: int,
        arrivals: Arrivals | None = None,
    ) -> None:
        """`streams`: the maximum number of turns at a time. `arrivals`: of all upstreams."""
        self.settings = settings
        self.dialect = dialect_of(settings)
        self._secrets = secrets_of(settings)
        self._limits = limits
        retries = UPSTREAM_RETRIES.labels(settings.name)
        self._sender = RequestSender(settings, streams + 16, retries, arrivals or Arrivals())
        self.plain = PlainCaller(self._sender, limits, self._secrets)

    def call(
        self,
        body: dict[str, Any],
        traceparent: str | None = None,
        files: RequestFiles = NO_FILES,
    ) -> UpstreamCall:
        """A call that has not begun. worker/translation makes `body` for the API that the
        upstream speaks. `files`: those in the body."""
        return UpstreamCall(
            self._sender,
            body,
            self._limits,
            self._secrets,
            api=self.settings.api,
            traceparent=traceparent,
            files=files,
        )

    async def count(
        self, body: dict[str, Any], settings: UpstreamSettings | None = None
    ) -> int | None:
        """Tokens of a request's body as the upstream counts them; None if it offers no count, or
        if the count fails. `settings`: others that say how it counts."""
        return await count_upstream(self._sender, settings or self.settings, body)

    @property
    def is_native(self) -> bool:
        """Whether the upstream speaks the Responses API."""
        return self.settings.api == "responses"

    async def close(self) -> None:
        """Closes all connections."""
        await self._sender.close()
