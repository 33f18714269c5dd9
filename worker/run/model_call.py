"""The response's model: its answers, each from the first of its upstreams that gives one (design §7).

A turn is asked of one upstream after the other for as long as nothing of it has been shown. Once it has been, no other upstream may say
the rest, so two models' words are never mixed.
"""

import asyncio
from contextlib import aclosing
from functools import partial
from typing import Any

import structlog

from models.errors import LimitReached, UpstreamBusy, UpstreamFailed
from models.ownership.claims import Claim
from models.wire.events import Event, Item
from models.wire.includes import filter_events
from models.wire.response import ResponseFacts
from models.wire.tools import NATIVE_ONLY_TOOLS
from worker.log.event_log import EventLog
from worker.metrics import UPSTREAM_TURNS
from worker.run.counting import TokenCount
from worker.run.output import Output
from worker.run.reasoning import reasoning_sealer, unseal_reasoning
from worker.run.resources import Resources
from worker.translation.chat.request import chat_request, wants_logprobs
from worker.translation.chat.structured import format_instructions
from worker.translation.chat.translator import ChatTranslator
from worker.translation.responses.request import native_request, tag_encrypted_content
from worker.translation.responses.translator import NativeTranslator
from worker.translation.tool_catalog import ToolCatalog
from worker.translation.turn import Outcome, Turn
from worker.upstream.dialect import dialect_of
from worker.upstream.failures import (
    NO_SUCH_MODEL,
    may_succeed_elsewhere,
    no_such_model,
    no_such_tool,
)
from worker.upstream.upstreams import Candidate, failure_of_all

logger = structlog.get_logger()

_LONG_HISTORY = 1000
"""Items from which a history's translation takes milliseconds."""


class ModelCaller:
    """The model of one run. `speaking` is the turn that is not stored yet, None between turns."""

    def __init__(
        self,
        claim: Claim,
        facts: ResponseFacts,
        log: EventLog,
        output: Output,
        resources: Resources,
    ) -> None:
        self._claim = claim
        self._facts = facts
        self._log = log
        self._output = output
        self._resources = resources
        self.current_turn: Turn[Any] | None = None
        self.has_emitted = False
        """Something of the present upstream call has been shown: no other upstream may say the rest."""

    async def count(
        self, parameters: dict[str, Any], history: list[Item], tool_catalog: ToolCatalog
    ) -> TokenCount:
        """Tokens of what the first of its upstreams would be told."""
        way = self._candidates()[0]
        return await self._resources.token_counter.count(
            way, await self._request_body(way, parameters, history, tool_catalog)
        )

    async def call(
        self,
        parameters: dict[str, Any],
        history: list[Item],
        tool_catalog: ToolCatalog,
        *,
        visible: bool = True,
    ) -> tuple[Outcome, Turn[Any]]:
        """The answer of the first of the model's upstreams that gives one: while not a word was said, another may be asked.

        Unless it is `aloud`, it is no part of the response: nobody is shown it.
        """
        ways = self._candidates()
        failures: list[UpstreamFailed | LimitReached] = []
        for way in ways:
            try:
                return await self._call_upstream(
                    way, parameters, history, tool_catalog, visible=visible
                )
            except (UpstreamFailed, LimitReached) as failure:
                UPSTREAM_TURNS.labels(
                    way.name, "busy" if isinstance(failure, UpstreamBusy) else "failed"
                ).inc()
                if failure.reason == NO_SUCH_MODEL:
                    raise no_such_model(
                        self._facts.model
                    ) from failure  # by the name that the client knows
                if self.has_emitted or not may_succeed_elsewhere(failure):
                    raise
                failures.append(failure)
            if way is not ways[-1]:
                logger.info(
                    "upstream_passed_over",
                    response=self._facts.id,
                    upstream=way.name,
                    reason=failures[-1].reason,
                )
        raise failure_of_all(ways, failures, can_wait=self._facts.background)

    def _candidates(self) -> list[Candidate]:
        """The upstreams to be asked, in order. Raises UpstreamFailed when there is none."""
        ways = self._resources.upstreams.candidates(self._facts.model)
        if not ways:
            raise no_such_model(self._facts.model)
        needed = next(
            (
                tool["type"]
                for tool in self._facts.parameters.get("tools", ())
                if tool["type"] in NATIVE_ONLY_TOOLS
            ),
            None,
        )
        capable = [way for way in ways if needed is None or way.upstream.is_native]
        if not capable:
            raise no_such_tool(str(needed))
        return capable

    async def _call_upstream(
        self,
        candidate: Candidate,
        parameters: dict[str, Any],
        history: list[Item],
        tool_catalog: ToolCatalog,
        *,
        visible: bool,
    ) -> tuple[Outcome, Turn[Any]]:
        """One upstream call, translated as it comes."""
        self.has_emitted = False
        body = await self._request_body(candidate, parameters, history, tool_catalog)
        translator = self._new_turn(candidate, parameters, tool_catalog)
        async with candidate.limiter.acquire(
            candidate.model, interactive=not self._facts.background
        ) as permit:
            if visible:
                self.current_turn = translator
            upstream_call = candidate.upstream.call(body)
            async with aclosing(upstream_call.chunks()) as reads:
                async for chunks in reads:
                    for chunk in chunks:
                        self._emit(translator.feed(chunk), visible=visible)
                    if self.has_emitted:
                        permit.record_success()
                    await self._resources.journal.wait_for_room(self._log)
            self._emit(translator.finish(done_seen=upstream_call.done_seen), visible=visible)
            assert translator.outcome is not None
            if translator.outcome.failure is not None and not self.has_emitted:
                raise translator.outcome.failure
            permit.record_success()
        UPSTREAM_TURNS.labels(candidate.name, "answered").inc()
        self._output.upstream = candidate.name
        self._output.service_tier = translator.service_tier or self._output.service_tier
        return translator.outcome, translator

    def _emit(self, events: list[Event], *, visible: bool) -> None:
        if not visible:
            return
        self.has_emitted = self.has_emitted or bool(events)
        self._resources.journal.write(
            self._log, filter_events(events, self._facts.parameters.get("include", ()))
        )

    async def _request_body(
        self,
        candidate: Candidate,
        parameters: dict[str, Any],
        history: list[Item],
        tool_catalog: ToolCatalog,
    ) -> dict[str, Any]:
        translate = partial(self._translate_request, candidate, parameters, history, tool_catalog)
        # A long history is walked beside the event loop: a thousand other streams are waiting in it.
        return translate() if len(history) < _LONG_HISTORY else await asyncio.to_thread(translate)

    def _translate_request(
        self,
        candidate: Candidate,
        parameters: dict[str, Any],
        history: list[Item],
        tool_catalog: ToolCatalog,
    ) -> dict[str, Any]:
        if candidate.upstream.is_native:
            return native_request(
                model=candidate.model,
                upstream=candidate.name,
                parameters=parameters,
                history=history,
                tool_catalog=tool_catalog,
                passthrough=candidate.upstream.settings.passthrough,
                searches=self._resources.settings.web_search.provider is not None,
                calls_left=max(0, parameters["max_tool_calls"] - self._output.calls_made)
                if "max_tool_calls" in parameters
                else None,
            )
        dialect = dialect_of(candidate.upstream.settings)
        opened_history = unseal_reasoning(
            history, self._resources.sealer, self._claim.row["project_id"], dialect
        )
        return chat_request(
            model=candidate.model,
            parameters=parameters,
            history=opened_history,
            tool_catalog=tool_catalog,
            dialect=dialect,
        )

    def _new_turn(
        self, candidate: Candidate, parameters: dict[str, Any], tool_catalog: ToolCatalog
    ) -> Turn[Any]:
        upstream = candidate.upstream.settings
        if candidate.upstream.is_native:
            keep = partial(tag_encrypted_content, candidate.name)
            return NativeTranslator(
                self._resources.new_id,
                tool_catalog=tool_catalog,
                tag_encrypted=keep,
                **self._turn_limits(parameters),
            )
        return ChatTranslator(
            self._resources.new_id,
            want_logprobs=wants_logprobs(parameters),
            tool_catalog=tool_catalog,
            **self._turn_limits(parameters),
            think_tags=upstream.think_tags,
            fenced=format_instructions(parameters.get("text", {}), upstream.structured_output)
            is not None,
            seal=reasoning_sealer(
                self._resources.sealer,
                self._claim.row["project_id"],
                parameters,
                dialect_of(upstream),
            ),
        )

    def _turn_limits(self, parameters: dict[str, Any]) -> dict[str, int]:
        """Where the turn begins, and how much it may say and call."""
        return {
            "first_index": self._output.next_index,
            "calls_allowed": self._calls_allowed(parameters),
            "output_limit": self._resources.settings.limits.output,
        }

    def _calls_allowed(self, parameters: dict[str, Any]) -> int:
        """How many calls of ours this turn may make."""
        most = self._resources.settings.tools.calls
        return (
            min(most, max(0, parameters["max_tool_calls"] - self._output.calls_made))
            if "max_tool_calls" in parameters
            else most
        )
