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
from models.wire.includes import shown_events
from models.wire.response import ResponseFacts
from models.wire.tools import PASSED_ON
from worker.log.event_log import EventLog
from worker.metrics import UPSTREAM_TURNS
from worker.run.counting import Count
from worker.run.output import Output
from worker.run.reasoning import seal_for, with_thoughts
from worker.run.resources import Resources
from worker.translation.chat.request import chat_request, wants_logprobs
from worker.translation.chat.structured import told_format
from worker.translation.chat.translator import Translator
from worker.translation.responses.request import kept_for, native_request
from worker.translation.responses.translator import NativeTranslator
from worker.translation.tool_catalog import Offer
from worker.translation.turn import Outcome, SpokenTurn
from worker.upstream.dialect import dialect_of
from worker.upstream.failures import NO_SUCH_MODEL, is_its_own_fault, no_such_model, no_such_tool
from worker.upstream.upstreams import Way, unserved

logger = structlog.get_logger()

_LONG_HISTORY = 1000
"""Items from which a history's translation takes milliseconds."""


class Model:
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
        self.speaking: SpokenTurn[Any] | None = None
        self.has_spoken = False
        """Something of the present upstream call has been shown: no other upstream may say the rest."""

    async def count(self, parameters: dict[str, Any], history: list[Item], offered: Offer) -> Count:
        """Tokens of what the first of its upstreams would be told."""
        way = self._ways()[0]
        return await self._resources.counter.count(
            way, await self._body(way, parameters, history, offered)
        )

    async def answer(
        self, parameters: dict[str, Any], history: list[Item], offered: Offer, *, aloud: bool = True
    ) -> tuple[Outcome, SpokenTurn[Any]]:
        """The answer of the first of the model's upstreams that gives one: while not a word was said, another may be asked.

        Unless it is `aloud`, it is no part of the response: nobody is shown it.
        """
        ways = self._ways()
        failures: list[UpstreamFailed | LimitReached] = []
        for way in ways:
            try:
                return await self._speak(way, parameters, history, offered, aloud=aloud)
            except (UpstreamFailed, LimitReached) as failure:
                UPSTREAM_TURNS.labels(
                    way.name, "busy" if isinstance(failure, UpstreamBusy) else "failed"
                ).inc()
                if failure.reason == NO_SUCH_MODEL:
                    raise no_such_model(
                        self._facts.model
                    ) from failure  # by the name that the client knows
                if self.has_spoken or not is_its_own_fault(failure):
                    raise
                failures.append(failure)
            if way is not ways[-1]:
                logger.info(
                    "upstream_passed_over",
                    response=self._facts.id,
                    upstream=way.name,
                    reason=failures[-1].reason,
                )
        raise unserved(ways, failures, can_wait=self._facts.background)

    def _ways(self) -> list[Way]:
        """The upstreams to be asked, in order. Raises UpstreamFailed when there is none."""
        ways = self._resources.upstreams.ways(self._facts.model)
        if not ways:
            raise no_such_model(self._facts.model)
        needed = next(
            (
                tool["type"]
                for tool in self._facts.parameters.get("tools", ())
                if tool["type"] in PASSED_ON
            ),
            None,
        )
        able = [way for way in ways if needed is None or way.upstream.is_native]
        if not able:
            raise no_such_tool(str(needed))
        return able

    async def _speak(
        self,
        way: Way,
        parameters: dict[str, Any],
        history: list[Item],
        offered: Offer,
        *,
        aloud: bool,
    ) -> tuple[Outcome, SpokenTurn[Any]]:
        """One upstream call, translated as it comes."""
        self.has_spoken = False
        body = await self._body(way, parameters, history, offered)
        translator = self._translator(way, parameters, offered)
        async with way.gate.visit(way.model, interactive=not self._facts.background) as visit:
            if aloud:
                self.speaking = translator
            turn = way.upstream.turn(body)
            async with aclosing(turn.chunks()) as reads:
                async for chunks in reads:
                    for chunk in chunks:
                        self._show(translator.feed(chunk), aloud=aloud)
                    if self.has_spoken:
                        visit.answered()
                    await self._resources.journal.room(self._log)
            self._show(translator.finish(done_seen=turn.done_seen), aloud=aloud)
            assert translator.outcome is not None
            if translator.outcome.failure is not None and not self.has_spoken:
                raise translator.outcome.failure
            visit.answered()
        UPSTREAM_TURNS.labels(way.name, "answered").inc()
        self._output.upstream = way.name
        self._output.service_tier = translator.service_tier or self._output.service_tier
        return translator.outcome, translator

    def _show(self, events: list[Event], *, aloud: bool) -> None:
        if not aloud:
            return
        self.has_spoken = self.has_spoken or bool(events)
        self._resources.journal.write(
            self._log, shown_events(events, self._facts.parameters.get("include", ()))
        )

    async def _body(
        self, way: Way, parameters: dict[str, Any], history: list[Item], offered: Offer
    ) -> dict[str, Any]:
        translate = partial(self._translated, way, parameters, history, offered)
        # A long history is walked beside the event loop: a thousand other streams are waiting in it.
        return translate() if len(history) < _LONG_HISTORY else await asyncio.to_thread(translate)

    def _translated(
        self, way: Way, parameters: dict[str, Any], history: list[Item], offered: Offer
    ) -> dict[str, Any]:
        if way.upstream.is_native:
            return native_request(
                model=way.model,
                upstream=way.name,
                parameters=parameters,
                history=history,
                offer=offered,
                passthrough=way.upstream.settings.passthrough,
                searches=self._resources.settings.web_search.provider is not None,
                calls_left=max(0, parameters["max_tool_calls"] - self._output.calls_made)
                if "max_tool_calls" in parameters
                else None,
            )
        dialect = dialect_of(way.upstream.settings)
        known = with_thoughts(
            history, self._resources.sealer, self._claim.row["project_id"], dialect
        )
        return chat_request(
            model=way.model, parameters=parameters, history=known, offer=offered, dialect=dialect
        )

    def _translator(self, way: Way, parameters: dict[str, Any], offered: Offer) -> SpokenTurn[Any]:
        upstream = way.upstream.settings
        if way.upstream.is_native:
            keep = partial(kept_for, way.name)
            return NativeTranslator(
                self._resources.new_id, offer=offered, keep=keep, **self._bounds(parameters)
            )
        return Translator(
            self._resources.new_id,
            want_logprobs=wants_logprobs(parameters),
            offer=offered,
            **self._bounds(parameters),
            think_tags=upstream.think_tags,
            fenced=told_format(parameters.get("text", {}), upstream.structured_output) is not None,
            seal=seal_for(
                self._resources.sealer,
                self._claim.row["project_id"],
                parameters,
                dialect_of(upstream),
            ),
        )

    def _bounds(self, parameters: dict[str, Any]) -> dict[str, int]:
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
