"""One call of the response's model: the first of its upstreams that answers.

The next upstream is tried as long as no event of the call was written. After the first event the
call stays with its upstream, so that one turn never holds the output of two models.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from models.errors import LimitReached, UpstreamFailed
from models.tracing.spans import NO_SPAN
from models.wire.events import Event, Item
from models.wire.response import SEALED_REASONING
from models.wire.token_counts import add_usage
from models.wire.tools import IMAGE_GENERATION, is_native_only, may_run_code
from worker.metrics import UPSTREAM_TURNS
from worker.run.context import RunContext
from worker.run.failover import first_answer, note_failure
from worker.run.model_metrics import CallObservation, note_unknown_content
from worker.run.moderation import CONTENT_FILTER, GatedCall, NotJudged, OutputFlagged
from worker.run.reasoning_summary import ReasoningSummaries, SummaryCaller
from worker.run.sealing import content_tagger, origin_sealer, reasoning_sealer, unseal_reasoning
from worker.run.spans import error_type, start_call_span
from worker.translation.chat.request import chat_request, format_instructions
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.messages.request import messages_request
from worker.translation.request_parameters import wants_logprobs, wants_summary
from worker.translation.responses.request import NativeOptions, native_request
from worker.translation.responses.translator import NativeTranslator
from worker.translation.returned_content import CallOrigin, ReturnedCalls
from worker.translation.tool_catalog import ToolCatalog, build_tool_catalog
from worker.translation.turn import Turn, TurnOptions, TurnOutcome
from worker.upstream.body_reader import Pause
from worker.upstream.circuits import Permit
from worker.upstream.client import StreamEvent, UpstreamCall
from worker.upstream.error_rules import OVERFLOW
from worker.upstream.failures import not_offered, refuses_thinking
from worker.upstream.upstreams import Candidate, TokenCount, repeat_of_turn

logger = structlog.get_logger()

_LONG_HISTORY = 1000
"""Items from which the translation of a history takes milliseconds."""
_FAST_READ = 4
"""Events. A read of the stream of a model that writes at its usual pace has one or two."""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What one call sends to the model, before it is translated for an upstream."""

    parameters: dict[str, Any]
    history: list[Item]
    tool_catalog: ToolCatalog = field(default_factory=ToolCatalog)

    def without_reasoning(self) -> "ModelInput":
        """The same without the reasoning in the history."""
        kept = [item for item in self.history if item["type"] != "reasoning"]
        return replace(self, history=kept)


class ModelCaller:
    """Calls the model of one run."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._attempt = context.attempt
        self._output = context.output
        self._resources = context.resources
        self._facts = context.attempt.facts
        self._project = context.attempt.claim.row.project_id
        self._has_emitted = False
        """Whether events of the present call were written."""
        self._turn_span = NO_SPAN

    def input_of(self, parameters: dict[str, Any], history: list[Item]) -> ModelInput:
        """The input with this history and all tools of the request that may still be called."""
        if self._context.moderation is not None:
            parameters = {name: value for name, value in parameters.items() if name != "moderation"}
        toolbox = self._context.toolbox
        server_functions = toolbox.server_functions()
        tool_catalog = build_tool_catalog(
            parameters, history, server_functions, defers_all=toolbox.defers_all
        )
        if server_functions and self._output.calls_left(parameters) == 0:
            tool_catalog = tool_catalog.without_server_functions()
        return ModelInput(parameters, history, tool_catalog)

    def is_retryable_overflow(self, failure: UpstreamFailed) -> bool:
        """Whether the history was too long for the model and a shorter one may be sent."""
        return failure.reason == OVERFLOW and not self._has_emitted

    async def count(self, history: list[Item]) -> TokenCount:
        """Tokens of the input with this history, for the first of the model's upstreams."""
        candidate = (await self._candidates())[0]
        model_input = self.input_of(self._context.parameters, history)
        # Without what upstreams want back with calls: a signature has no tokens.
        body = await self._request_body(candidate, model_input, {})
        await self._context.attachments.hold()
        try:
            return await self._resources.token_counter.count(candidate, body)
        finally:
            self._context.attachments.release()

    async def call(
        self, model_input: ModelInput, *, visible: bool = True
    ) -> tuple[TurnOutcome, Turn[Any]]:
        """The outcome and the turn of the first upstream that answers.

        A call that is not `visible` is no part of the response: none of its events is written.
        Raises RunError if every upstream failed, or one of them after its first event.
        """
        name = "turn" if visible else "compaction"
        span = self._turn_span = self._context.span.start(name, {"backburner.turn": self._number})
        try:
            return await self._call_candidates(model_input, visible=visible)
        except NotJudged as error:
            span.fail(error_type(error.failure))
            raise error.failure from error
        except BaseException as error:
            span.fail(error_type(error))
            raise
        finally:
            span.end()

    @property
    def _holds_back(self) -> bool:
        """Whether readers get nothing of a turn before it is judged. Then nothing makes summaries
        of reasoning, which would not be."""
        moderation = self._context.moderation
        return moderation is not None and moderation.holds_back

    @property
    def _number(self) -> int:
        """The number of the present turn, from 1."""
        return self._output.turns + 1

    async def _call_candidates(
        self, model_input: ModelInput, *, visible: bool
    ) -> tuple[TurnOutcome, Turn[Any]]:
        called: list[Candidate] = []

        async def call(candidate: Candidate) -> tuple[TurnOutcome, Turn[Any]]:
            called.append(candidate)
            try:
                outcome, turn = await self._call_upstream(candidate, model_input, visible=visible)
            except UpstreamFailed as failure:
                if candidate.upstream.settings.api != "messages" or not refuses_thinking(failure):
                    raise
                logger.warning("thinking_refused", response=self._facts.id, upstream=candidate.name)
                outcome, turn = await self._call_upstream(
                    candidate, model_input.without_reasoning(), visible=visible
                )
            if outcome.failure is not None:
                note_failure(self._attempt, candidate, outcome.failure)
            return outcome, turn

        candidates = await self._candidates()
        try:
            outcome, turn = await first_answer(
                self._attempt, candidates, call, lambda: self._has_emitted
            )
        except (UpstreamFailed, LimitReached) as failure:
            self._repeat_if_broken_off(called[-1], failure)
            raise
        if outcome.failure is not None:
            self._repeat_if_broken_off(called[-1], outcome.failure)
        return outcome, turn

    def _repeat_if_broken_off(
        self, candidate: Candidate, failure: UpstreamFailed | LimitReached
    ) -> None:
        """Raises Deferred if a later attempt is to repeat the turn."""
        if not self._facts.background:
            return
        repeat = repeat_of_turn(candidate, failure, self._attempt.turn_repeats)
        if repeat is not None:
            raise repeat from failure

    async def _candidates(self) -> list[Candidate]:
        """The upstreams that can run the request, in order. Raises UpstreamFailed if none can."""
        candidates = await self._context.candidates()
        parameters = self._context.parameters
        tools = parameters.get("tools", ())
        native_only = next((tool["type"] for tool in tools if self._is_native_only(tool)), None)
        if native_only is not None:
            candidates = [each for each in candidates if each.upstream.is_native]
            if not candidates:
                runs = f"runs tools of the type '{native_only}'"
                raise not_offered(runs, reason="tool_unavailable", param="tools")
        if "moderation" in parameters and self._context.moderation is None:
            candidates = [each for each in candidates if each.upstream.settings.moderates]
            if not candidates:
                moderates = "moderates its input and output"
                raise not_offered(moderates, reason="moderation_unavailable", param="moderation")
        return candidates

    def _is_native_only(self, tool: Mapping[str, Any]) -> bool:
        """Whether only a native upstream can run the tool: this server may run code and make images
        too."""
        if tool["type"] == IMAGE_GENERATION:
            return self._resources.settings.images.model is None
        runs_code = tool["type"] in self._resources.tools and may_run_code(tool)
        return is_native_only(tool) and not runs_code

    async def _call_upstream(
        self, candidate: Candidate, model_input: ModelInput, *, visible: bool
    ) -> tuple[TurnOutcome, Turn[Any]]:
        """Calls one upstream and translates its stream while it arrives."""
        self._has_emitted = False
        moderation = self._context.moderation if visible else None
        origins = {}
        if not candidate.upstream.is_native:
            origins = await self._context.call_origins.of(model_input.history, self._output)
        body = await self._request_body(candidate, model_input, origins)
        turn = self._new_turn(candidate, model_input, visible=visible)
        gate = None
        if moderation is not None and self._holds_back:
            gate = moderation.gate(self._new_turn(candidate, model_input, visible=visible))
        async with candidate.acquire(interactive=not self._facts.background) as permit:
            # Here, so that a wait for PostgreSQL does not count in the time limits of the call.
            await self._resources.ownership.wait_until_fresh()
            if visible:
                self._attempt.current_turn = turn
            observe = partial(self._observe, candidate)
            parameters, history = model_input.parameters, model_input.history
            caller = SummaryCaller(self._resources, candidate, parameters, observe, self._facts.id)
            summaries = ReasoningSummaries(turn, caller, partial(self._emit, visible=visible))
            with observe(turn, parameters, history) as observation:
                propagates = self._resources.settings.traces.propagate
                call = candidate.upstream.call(
                    body,
                    observation.traceparent if propagates else None,
                    self._context.attachments,
                )
                try:
                    async with summaries:
                        outcome = await self._read_turn(
                            call if gate is None else GatedCall(call, gate),
                            turn,
                            permit,
                            observation,
                            summaries,
                            visible=visible,
                        )
                except OutputFlagged as flagged:
                    self._emit(turn.close_incomplete(), visible=visible)
                    self._output.usage = add_usage(self._output.usage, flagged.usage)
                    outcome = TurnOutcome("incomplete", incomplete_reason=CONTENT_FILTER)
                finally:
                    note_unknown_content(self._attempt, candidate, turn.unknown_content)
            permit.record_success()
        if moderation is not None and gate is None:
            await moderation.judge(turn)
        UPSTREAM_TURNS.labels(candidate.name, "answered").inc()
        self._output.upstream = candidate.name
        self._output.service_tier = turn.service_tier or self._output.service_tier
        self._output.upstream_fields = turn.upstream_fields
        return outcome, turn

    def _observe(
        self,
        candidate: Candidate,
        turn: Turn[Any],
        parameters: dict[str, Any],
        history: list[Item],
    ) -> CallObservation:
        has_content = self._resources.settings.traces.content
        span = start_call_span(
            self._turn_span,
            candidate.upstream.settings,
            candidate.model,
            parameters,
            history,
            has_content=has_content,
        )
        return CallObservation(
            turn,
            span,
            model=self._facts.model,
            upstream=candidate.name,
            project=str(self._project),
            has_content=has_content,
        )

    async def _read_turn(
        self,
        upstream_call: UpstreamCall | GatedCall,
        turn: Turn[Any],
        permit: Permit,
        observation: CallObservation,
        summaries: ReasoningSummaries,
        *,
        visible: bool,
    ) -> TurnOutcome:
        """Reads the upstream's stream to its end. Raises its failure if no event was written."""
        writer = self._context.writer

        def take(chunks: Sequence[StreamEvent]) -> Pause | None:
            self._feed(turn, chunks, visible=visible)
            summaries.begin()
            if self._has_emitted:
                permit.record_success()
                observation.record_output()
            is_fast = len(chunks) > _FAST_READ
            return partial(self._wait, is_fast=is_fast) if is_fast or writer.has_to_wait else None

        await upstream_call.read(take)
        await summaries.finish(done_seen=upstream_call.done_seen)
        async with writer.large_output():
            self._emit(turn.finish(done_seen=upstream_call.done_seen), visible=visible)
            await writer.wait_for_room()
        assert turn.outcome is not None
        if turn.outcome.failure is not None:
            upstream_call.redact(turn.outcome.failure)
            if not self._has_emitted:
                raise turn.outcome.failure
        return turn.outcome

    async def _wait(self, *, is_fast: bool) -> None:
        """A pause before the next read."""
        if self._has_emitted:
            await self._context.writer.record_answer()
        await self._context.writer.wait_for_room()
        if is_fast:
            await self._resources.fast_reads.wait(self._project)

    def _feed(self, turn: Turn[Any], chunks: Sequence[StreamEvent], *, visible: bool) -> None:
        """Writes the events of one read at once, also those before a chunk that the turn
        refuses."""
        events: list[Event] = []
        try:
            for chunk in chunks:
                events += turn.feed(chunk)
        finally:
            self._emit(events, visible=visible)

    def _emit(self, events: list[Event], *, visible: bool) -> None:
        if visible and events:
            self._has_emitted = True
            self._context.writer.write(events)

    async def _request_body(
        self, candidate: Candidate, model_input: ModelInput, origins: dict[str, CallOrigin]
    ) -> dict[str, Any]:
        translate = partial(self._translate_request, candidate, model_input, origins)
        if len(model_input.history) < _LONG_HISTORY:
            return translate()
        # In a thread: the event loop serves a thousand other streams.
        return await asyncio.to_thread(translate)

    def _translate_request(
        self, candidate: Candidate, model_input: ModelInput, origins: dict[str, CallOrigin]
    ) -> dict[str, Any]:
        parameters, history = model_input.parameters, model_input.history
        if candidate.upstream.is_native:
            return native_request(
                model=candidate.model,
                parameters=parameters,
                history=history,
                tool_catalog=model_input.tool_catalog,
                options=NativeOptions(
                    upstream=candidate.name,
                    passthrough=candidate.upstream.settings.passthrough,
                    searches=self._resources.settings.web_search.provider is not None,
                    calls_left=self._output.calls_left(parameters),
                ),
            )
        dialect = candidate.upstream.dialect
        opened_history = unseal_reasoning(
            history, self._resources.sealer, self._project, dialect, candidate.name
        )
        make_request = messages_request if dialect.api == "messages" else chat_request
        return make_request(
            model=candidate.model,
            parameters=parameters,
            history=opened_history,
            tool_catalog=model_input.tool_catalog,
            dialect=dialect,
            returned_calls=ReturnedCalls(
                candidate.name, origins, dialect.call_id_form, dialect.foreign_call_fields
            ),
        )

    def _new_turn(
        self, candidate: Candidate, model_input: ModelInput, *, visible: bool
    ) -> Turn[Any]:
        parameters, upstream = model_input.parameters, candidate.upstream.settings
        if candidate.upstream.is_native:
            return NativeTranslator(
                self._resources.new_id,
                TurnOptions(
                    tool_catalog=model_input.tool_catalog,
                    **self._turn_limits(parameters, visible=visible),
                ),
                tag_encrypted=content_tagger(self._resources.sealer, self._project, candidate.name),
            )
        text, is_messages = parameters.get("text", {}), upstream.api == "messages"
        instructions = format_instructions(text, upstream.structured_output, upstream.api)
        return ChatTranslator(
            self._resources.new_id,
            ChatOptions(
                want_logprobs=wants_logprobs(parameters),
                tool_catalog=model_input.tool_catalog,
                **self._turn_limits(parameters, visible=visible),
                think_tags=upstream.think_tags,
                think_opened=upstream.think_opened,
                finish_reasons=upstream.finish_reasons,
                fenced=instructions is not None,
                seal=reasoning_sealer(
                    self._resources.sealer,
                    self._project,
                    parameters,
                    candidate.upstream.dialect,
                    candidate.name,
                ),
                upstream=candidate.name,
                seal_origin=origin_sealer(self._resources.sealer, self._project),
                carries_origins=SEALED_REASONING in parameters.get("include", ()),
                reasoning_in_order=is_messages,
                reasoning_is_summary=is_messages and wants_summary(parameters),
                summarised=visible
                and upstream.reasoning_summary
                and wants_summary(parameters)
                and not self._holds_back,
            ),
        )

    def _turn_limits(self, parameters: dict[str, Any], *, visible: bool) -> dict[str, Any]:
        """The turn's first output index, its limits of tool calls, tokens and bytes, and whether it
        may be empty: after another turn, a model may have nothing to add."""
        settings = self._resources.settings
        return {
            "first_index": self._output.next_index,
            "calls_allowed": settings.tools.calls,
            "calls_left": self._output.calls_left(parameters),
            "needs_output": visible and not self._output.turns,
            "token_limit": parameters.get("max_output_tokens"),
            "output_limit": settings.limits.output,
        }
