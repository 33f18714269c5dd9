"""The tool loop: turns of the model, and between them the calls that this server runs (design §4.4).

What is finished rests in Postgres before the next thing begins: a turn with all its items, then each call as begun, then as answered. So
another worker goes on after the last finished step. A call that was begun and never answered may or may not have taken effect; it is
repeated only where that does no harm, else the model is told and decides (design §4.6).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import structlog

from models.errors import LimitReached, UpstreamBusy, UpstreamFailed
from models.ownership import Claim
from models.wire.counting import COUNTED, COUNTED_BY
from models.wire.events import Event, Item
from models.wire.includes import shown_events
from models.wire.response import ResponseFacts, output_text
from models.wire.tools import PASSED_ON
from worker.compacting import Compactions, Heard
from worker.counting import Count
from worker.event_log import EventLog
from worker.metrics import UPSTREAM_TURNS
from worker.output import Entry, Output
from worker.reasoning import seal_for, with_thoughts
from worker.resources import Resources
from worker.tools.source import Refusal, Result
from worker.tools.toolbox import Toolbox
from worker.translation.compaction import CompactionTurn
from worker.translation.items import OpenItem
from worker.translation.measure import tokens_of
from worker.translation.native import NativeTranslator
from worker.translation.native_request import kept_for, native_request
from worker.translation.offer import Offer, offer
from worker.translation.request import after_a_call, chat_request, wants_logprobs
from worker.translation.spoken_turn import Outcome, SpokenTurn
from worker.translation.structured import told_format
from worker.translation.translator import Translator
from worker.translation.truncation import ever_shorter
from worker.translation.usage import Usage
from worker.undivided import undivided
from worker.upstream.dialect import dialect_of
from worker.upstream.failures import NO_SUCH_MODEL, is_its_own_fault, no_such_model, no_such_tool
from worker.upstream.overflow import OVERFLOW
from worker.upstream.upstreams import Way, unserved

logger = structlog.get_logger()

_LONG_HISTORY = 1000
"""Items from which a history's translation takes milliseconds."""

_UNKNOWN_OUTCOME = (
    "The server that ran this call was lost before the answer came. What it was asked to do may or may not have happened; "
    "it was not tried again."
)


class Turns:
    """The work of one run. `speaking` is the turn that is not stored yet, None between turns."""

    def __init__(
        self,
        claim: Claim,
        facts: ResponseFacts,
        log: EventLog,
        output: Output,
        resources: Resources,
        *,
        history: list[Item],
        toolbox: Toolbox,
        compactions: Compactions,
        is_retiring: Callable[[], bool],
    ) -> None:
        """`history`: what was said before this response's output. `is_retiring`: whether to stop before the next step."""
        self._claim = claim
        self._facts = facts
        self._log = log
        self._output = output
        self._resources = resources
        self._history = history
        self._toolbox = toolbox
        self._compactions = compactions
        self._is_retiring = is_retiring
        self._left_out = 0.0
        """The share of the history that did not fit the model's context (worker/translation/truncation.py)."""
        self._told_before: tuple[int, int] | None = None
        """The tokens that the upstream counted in the last turn's input, and how many items of output that held."""
        self.speaking: SpokenTurn[Any] | None = None
        self._has_spoken = False
        """Something of the present upstream call has been shown: no other upstream may say the rest."""

    async def run(self) -> Outcome | None:
        """Goes on until nothing is left to do; None: it stopped before the next step because it is to be handed over.

        Raises RunError for what ends the response.
        """
        output = self._output
        if COUNTED in self._facts.parameters:
            return await self._counted()
        self._toolbox.due(self._said())  # so that the tools know what an earlier attempt had learnt of them
        await self._answer_calls()
        while not output.open_calls:
            if output.waits_for_client:
                return Outcome("completed")
            if self._compactions.is_all and output.entries:
                return Outcome("completed")
            if self._is_retiring():
                return None
            if not self._compactions.is_all and await self._prepare():
                continue
            if output.turns >= self._resources.settings.limits.turns:
                return Outcome("incomplete", incomplete_reason="max_messages")
            if await self._is_too_long():
                await self._compact()
                continue
            try:
                outcome, translator = await self._turn()
            except UpstreamFailed as failure:
                if failure.reason != OVERFLOW or self._has_spoken or not self._may_compact(self._said()):
                    raise
                await self._compact()
                continue
            if not translator.goes_on:
                return outcome
            if translator.usage is not None:
                self._told_before = (translator.usage["input_tokens"], len(output.entries))
            await undivided(self._checkpoint(translator.items, translator))
            await self._answer_calls()
        return None

    async def _prepare(self) -> bool:
        """Runs what must be run before the model speaks: tools listed, approved calls made. False: there was nothing."""
        first = self._output.next_index
        calls = [opening(first + at, self._resources.new_id) for at, opening in enumerate(self._toolbox.due(self._said()))]
        if not calls:
            return False
        for call in calls:
            self._resources.journal.write(self._log, [*call.opened(), *call.asked()])
        await undivided(self._checkpoint(calls, None))
        await self._answer_calls()
        return True

    def _said(self) -> list[Item]:
        return self._compactions.opened([*self._history, *self._output.said])

    # --- compaction ---

    async def _is_too_long(self) -> bool:
        """Whether the history is to be summed up before the next turn."""
        if self._compactions.is_all:
            return True
        history = self._said()
        return self._may_compact(history) and await self._size(history) > (self._compactions.threshold or 0)

    def _may_compact(self, history: list[Item]) -> bool:
        return self._compactions.threshold is not None and self._compactions.is_possible(history)

    async def _size(self, history: list[Item]) -> int:
        """Tokens of what the model would be told: as the upstream counted them the last time and what was said since, else counted anew."""
        if self._told_before is not None:
            tokens, items = self._told_before
            return tokens + tokens_of(self._output.said[items:])
        return (await self._count(history)).tokens

    async def _count(self, history: list[Item]) -> Count:
        """Tokens of what the first of the model's upstreams would be told."""
        way = self._ways()[0]
        parameters = {name: value for name, value in self._facts.parameters.items() if name != COUNTED}
        body = await self._body(way, parameters, history, offer(parameters, history, self._toolbox.offered()))
        return await self._resources.counter.count(way, body)

    async def _counted(self) -> Outcome:
        """The end of a response that is only counted."""
        count = await self._count(self._said())
        self._output.usage = {**Usage(input_tokens=count.tokens, total_tokens=count.tokens).to_json(), COUNTED_BY: count.source}
        return Outcome("completed")

    async def _compact(self) -> None:
        """Puts a compaction in the place of the history. It is stored before anything follows; until then an attempt begins it anew."""
        await self._resources.ownership.certain()
        self.speaking = making = CompactionTurn(self._resources.new_id, first_index=self._output.next_index)
        self._resources.journal.write(self._log, making.opened())
        content = await self._compactions.summary(self._said(), self._ask, making.spend_usage)
        await undivided(self._checkpoint(making.items, making, making.sealed(content)))
        self._told_before, self._left_out = None, 0.0

    async def _ask(self, parameters: dict[str, Any], history: list[Item]) -> Heard:
        """What the model says to this, told to nobody."""
        _, turn = await self._answer(parameters, history, Offer(), aloud=False)
        return Heard(output_text(turn.output), turn.usage)

    # --- a turn ---

    async def _turn(self) -> tuple[Outcome, SpokenTurn[Any]]:
        """One answer of the model. With `truncation: auto` it is told ever less, until that fits its context."""
        await self._resources.ownership.certain()
        parameters = self._facts.parameters if not self._output.calls_made else after_a_call(self._facts.parameters)
        history = self._said()
        offered = offer(parameters, history, self._toolbox.offered())
        if parameters.get("truncation") != "auto" or self._may_compact(history):
            return await self._answer(parameters, history, offered)
        overflow: UpstreamFailed | None = None
        for share, shorter in ever_shorter(history, self._left_out):
            self._left_out = share
            try:
                return await self._answer(parameters, shorter, offered)
            except UpstreamFailed as failure:
                if failure.reason != OVERFLOW or self._has_spoken:
                    raise
                overflow = failure
        assert overflow is not None
        raise overflow

    async def _answer(
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
                UPSTREAM_TURNS.labels(way.name, "busy" if isinstance(failure, UpstreamBusy) else "failed").inc()
                if failure.reason == NO_SUCH_MODEL:
                    raise no_such_model(self._facts.model) from failure  # by the name that the client knows
                if self._has_spoken or not is_its_own_fault(failure):
                    raise
                failures.append(failure)
            if way is not ways[-1]:
                logger.info("upstream_passed_over", response=self._facts.id, upstream=way.name, reason=failures[-1].reason)
        raise unserved(ways, failures, can_wait=self._facts.background)

    def _ways(self) -> list[Way]:
        """The upstreams to be asked, in order. Raises UpstreamFailed when there is none."""
        ways = self._resources.upstreams.ways(self._facts.model)
        if not ways:
            raise no_such_model(self._facts.model)
        needed = next((tool["type"] for tool in self._facts.parameters.get("tools", ()) if tool["type"] in PASSED_ON), None)
        able = [way for way in ways if needed is None or way.upstream.is_native]
        if not able:
            raise no_such_tool(str(needed))
        return able

    async def _speak(
        self, way: Way, parameters: dict[str, Any], history: list[Item], offered: Offer, *, aloud: bool
    ) -> tuple[Outcome, SpokenTurn[Any]]:
        """One upstream call, translated as it comes."""
        self._has_spoken = False
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
                    if self._has_spoken:
                        visit.answered()
                    await self._resources.journal.room(self._log)
            self._show(translator.finish(done_seen=turn.done_seen), aloud=aloud)
            assert translator.outcome is not None
            if translator.outcome.failure is not None and not self._has_spoken:
                raise translator.outcome.failure
            visit.answered()
        UPSTREAM_TURNS.labels(way.name, "answered").inc()
        self._output.upstream = way.name
        self._output.service_tier = translator.service_tier or self._output.service_tier
        return translator.outcome, translator

    def _show(self, events: list[Event], *, aloud: bool) -> None:
        if not aloud:
            return
        self._has_spoken = self._has_spoken or bool(events)
        self._resources.journal.write(self._log, shown_events(events, self._facts.parameters.get("include", ())))

    async def _body(self, way: Way, parameters: dict[str, Any], history: list[Item], offered: Offer) -> dict[str, Any]:
        translate = partial(self._translated, way, parameters, history, offered)
        # A long history is walked beside the event loop: a thousand other streams are waiting in it.
        return translate() if len(history) < _LONG_HISTORY else await asyncio.to_thread(translate)

    def _translated(self, way: Way, parameters: dict[str, Any], history: list[Item], offered: Offer) -> dict[str, Any]:
        if way.upstream.is_native:
            return native_request(
                model=way.model,
                upstream=way.name,
                parameters=parameters,
                history=history,
                offer=offered,
                passthrough=way.upstream.settings.passthrough,
                searches=self._resources.settings.web_search.provider is not None,
                calls_left=max(0, parameters["max_tool_calls"] - self._output.calls_made) if "max_tool_calls" in parameters else None,
            )
        dialect = dialect_of(way.upstream.settings)
        known = with_thoughts(history, self._resources.sealer, self._claim.row["project_id"], dialect)
        return chat_request(model=way.model, parameters=parameters, history=known, offer=offered, dialect=dialect)

    def _translator(self, way: Way, parameters: dict[str, Any], offered: Offer) -> SpokenTurn[Any]:
        upstream = way.upstream.settings
        if way.upstream.is_native:
            keep = partial(kept_for, way.name)
            return NativeTranslator(self._resources.new_id, offer=offered, keep=keep, **self._bounds(parameters))
        return Translator(
            self._resources.new_id,
            want_logprobs=wants_logprobs(parameters),
            offer=offered,
            **self._bounds(parameters),
            think_tags=upstream.think_tags,
            fenced=told_format(parameters.get("text", {}), upstream.structured_output) is not None,
            seal=seal_for(self._resources.sealer, self._claim.row["project_id"], parameters, dialect_of(upstream)),
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
        return min(most, max(0, parameters["max_tool_calls"] - self._output.calls_made)) if "max_tool_calls" in parameters else most

    async def _checkpoint(self, items: Sequence[OpenItem], translator: SpokenTurn[Any] | None, last: Sequence[Event] = ()) -> None:
        """Stores a step, and is then between turns. `last`: events of it that are shown when it is stored."""
        answers = translator.refusals if translator is not None else {}
        usage = translator.usage if translator is not None else None
        step = self._output.step(items, answers, usage, turns=0 if translator is None else 1)
        resources = self._resources
        await resources.journal.store_first(self._log, last, lambda tail: resources.ownership.checkpoint(self._claim, tail, step))
        self._output.add(step, items)
        self.speaking = None

    # --- calls ---

    async def _answer_calls(self) -> None:
        """Runs all open calls, side by side unless the client wants them one at a time. When retiring, begins none."""
        side_by_side = self._facts.parameters.get("parallel_tool_calls", True)
        room = asyncio.Semaphore(self._resources.settings.tools.parallel if side_by_side else 1)
        try:
            async with asyncio.TaskGroup() as group:
                for entry in self._output.open_calls:
                    group.create_task(self._answer_call(entry, room))
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None

    async def _answer_call(self, entry: Entry, room: asyncio.Semaphore) -> None:
        async with room:
            if self._is_retiring():
                return
            if entry.is_started and not self._toolbox.is_repeatable(entry.item):
                await undivided(self._finish(entry, Refusal(_UNKNOWN_OUTCOME)))
                return
            ownership = self._resources.ownership
            await ownership.certain()
            await undivided(ownership.start_call(self._claim, entry.position))
            result = await self._toolbox.run(entry.item)
            await undivided(self._finish(entry, result))

    async def _finish(self, entry: Entry, result: Result | Refusal) -> None:
        """Stores a call's answer, then shows it."""
        call = entry.call
        assert call is not None
        answer: Any
        if isinstance(result, Refusal):
            events, answer = call.answered(call.failure(str(result)), failed=True), f"Error: {result}"
        else:
            events, answer = call.answered(result.fields, failed=result.failed), result.answer
        item = call.to_json()
        ownership = self._resources.ownership
        await self._resources.journal.store_first(
            self._log, events, lambda tail: ownership.finish_call(self._claim, tail, entry.position, item, answer)
        )
        entry.item, entry.answer, entry.call = item, answer, None
