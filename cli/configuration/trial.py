"""Sends an upstream one request as a worker would, to see what becomes of it.

Each request has a limit of tokens and a limit of time, so that a model that does not stop ends too.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from models.config.groups import LimitSettings
from models.config.upstream import UpstreamSettings
from models.errors import LimitReached, UpstreamFailed
from models.ids import new_item_id
from models.wire.events import Item
from models.wire.request import CreateRequest, parse_create
from worker.translation.chat.request import chat_request, format_instructions
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.messages.request import messages_request
from worker.translation.responses.request import NativeOptions, native_request
from worker.translation.responses.translator import NativeTranslator
from worker.translation.returned_content import ReturnedCalls
from worker.translation.tool_catalog import build_tool_catalog
from worker.translation.turn import Turn, TurnOptions
from worker.upstream.client import StreamEvent, Upstream, dialect_of

TRIAL_ERRORS = (UpstreamFailed, LimitReached)
"""What a trial raises for what the upstream does."""


class _Accepted(Exception):
    """The request was accepted: its answer is not read to the end."""


@dataclass(slots=True)
class TurnResult:
    """One turn of the model."""

    items: list[Item] = field(default_factory=list)
    chunk_count: int = 0
    """Chunks that brought output."""
    usage: dict[str, Any] | None = None
    cut: str | None = None
    """The limit that ended the turn: its words; None if the model ended it."""

    @property
    def text(self) -> str:
        parts = [
            part for item in self.items if item["type"] == "message" for part in item["content"]
        ]
        return "".join(part.get("text", "") for part in parts).strip()

    @property
    def calls(self) -> list[Item]:
        return [item for item in self.items if item["type"] == "function_call"]

    @property
    def has_reasoning(self) -> bool:
        return any(item["type"] == "reasoning" for item in self.items)


class Trial:
    """Turns of one model at one upstream, which are sent one after another."""

    def __init__(
        self,
        settings: UpstreamSettings,
        limits: LimitSettings,
        model: str,
        *,
        seconds: float,
        tokens: int,
    ) -> None:
        """`seconds`: the time limit of one request. `tokens`: its limit of output tokens."""
        self.settings = settings
        self.model = model
        self.seconds = seconds
        self.tokens = tokens
        # The limit for silence comes a moment later than that of the request.
        silence = {
            name: timedelta(seconds=seconds + 1) for name in ("first_token", "token_gap", "turn")
        }
        self._upstream = Upstream(settings, limits.model_copy(update=silence), 4)

    @property
    def time_cut(self) -> str:
        """What `TurnResult.cut` is after the limit of time."""
        return f"the limit of {self.seconds:g} s (--seconds)"

    async def close(self) -> None:
        """Closes all connections."""
        await self._upstream.close()

    async def count(self, settings: UpstreamSettings) -> int | None:
        """The tokens of a short request as the upstream counts them with these settings."""
        body, _ = self._build_request(self._parse("Say hello.", {}), settings)
        return await self._upstream.count(body, settings)

    async def run(
        self,
        input_value: Any,
        settings: UpstreamSettings | None = None,
        *,
        to_end: bool = True,
        **parameters: Any,
    ) -> TurnResult:
        """Runs one turn, with other settings of a chat upstream if given. Raises UpstreamFailed or
        LimitReached: the error that would end a response.

        Unless `to_end`, the turn is ended with its first output: the request was accepted.
        """
        request = self._parse(input_value, {"max_output_tokens": self.tokens, **parameters})
        body, translator = self._build_request(request, settings or self.settings)
        result = TurnResult()
        try:
            async with asyncio.timeout(self.seconds):
                await self._read(body, translator, result, to_end=to_end)
        except TimeoutError as error:
            if not result.chunk_count:
                raise LimitReached(
                    f"no answer came within {self.seconds:g} s", reason="first_token"
                ) from error
            result.cut = self.time_cut
        outcome = translator.outcome
        if outcome is not None and outcome.incomplete_reason == "max_output_tokens":
            limit = request.parameters["max_output_tokens"]
            result.cut = f"the limit of {limit} tokens (--tokens)"
        result.items, result.usage = translator.output, translator.usage
        return result

    async def _read(
        self, body: dict[str, Any], translator: Turn[Any], result: TurnResult, *, to_end: bool
    ) -> None:
        turn = self._upstream.call(body)

        def take(chunks: Sequence[StreamEvent]) -> None:
            result.chunk_count += sum(bool(translator.feed(chunk)) for chunk in chunks)
            if result.chunk_count and not to_end:
                raise _Accepted

        try:
            await turn.read(take)
        except _Accepted:
            return
        translator.finish(done_seen=turn.done_seen)
        outcome = translator.outcome
        if outcome is not None and outcome.failure is not None:
            raise outcome.failure

    def _parse(self, input_value: Any, parameters: dict[str, Any]) -> CreateRequest:
        return parse_create(
            {"model": self.model, "input": input_value, **parameters}, new_id=new_item_id
        )

    def _build_request(
        self, request: CreateRequest, settings: UpstreamSettings
    ) -> tuple[dict[str, Any], Turn[Any]]:
        """The body for the upstream, and the turn that reads its answer."""
        catalog = build_tool_catalog(request.parameters)
        arguments: dict[str, Any] = {
            "model": self.model,
            "parameters": request.parameters,
            "history": request.input,
            "tool_catalog": catalog,
        }
        if self._upstream.is_native:
            return native_request(
                options=NativeOptions(settings.name), **arguments
            ), NativeTranslator(new_item_id, TurnOptions(tool_catalog=catalog))
        instructions = format_instructions(
            request.parameters.get("text", {}), settings.structured_output, settings.api
        )
        translator = ChatTranslator(
            new_item_id,
            ChatOptions(
                tool_catalog=catalog,
                think_tags=settings.think_tags,
                think_opened=settings.think_opened,
                finish_reasons=settings.finish_reasons,
                fenced=instructions is not None,
            ),
        )
        dialect = dialect_of(settings)
        if settings.api == "messages":
            return messages_request(
                dialect=dialect, returned_calls=ReturnedCalls(settings.name), **arguments
            ), translator
        return chat_request(dialect=dialect, **arguments), translator
