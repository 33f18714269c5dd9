"""Moderation in a worker: the input and the output of runs, and the results of moderations, as
upstreams send them and as a response shows them."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from features.moderation.policy import (
    EventTexts,
    ModerationPolicy,
    images_of,
    moderated_by_upstreams,
    pieces,
    texts_of,
)
from features.usage_entries import FeatureCall, count_call
from models.config.feature_groups import ModerationSettings
from models.errors import Deferred, LimitReached, RunError, UpstreamFailed
from models.ids import new_uuid, response_id
from models.wire.events import Item
from models.wire.token_counts import NO_TOKENS, UsageKind, usage_in
from worker.run.attempt import Attempt
from worker.run.failover import first_answer
from worker.run.moderation import Gate, Moderation, OutputFlagged, RunInput
from worker.run.resources import Resources, WorkerFeature
from worker.translation.turn import Turn
from worker.upstream.client import StreamEvent
from worker.upstream.upstreams import Candidate

Result = dict[str, Any]
"""`{"type": "moderation_result", "flagged", "categories", …}`, or `{"type": "error", …}`."""


class NoModeration(Exception):
    """The answer of an upstream is no moderation."""


def results_in(answer: Any, model: str) -> list[Result]:
    """The results in the answer to one text or image: at least one. Raises NoModeration.

    Servers of guard models leave fields out, and add words. What decides is `flagged`, or without
    it whether a category is true.
    """
    found = answer.get("results") if isinstance(answer, Mapping) else None
    if not isinstance(found, list) or not found:
        raise NoModeration
    return [_result(each, model) for each in found]


def _result(value: Any, model: str) -> Result:
    if not isinstance(value, Mapping):
        raise NoModeration
    categories = _of_type(value.get("categories"), bool)
    flagged = value.get("flagged")
    if not isinstance(flagged, bool):
        if not categories:
            raise NoModeration
        flagged = any(categories.values())
    scores = _of_type(value.get("category_scores"), float, int)
    kinds = _of_type(value.get("category_applied_input_types"), list)
    return {
        "type": "moderation_result",
        "model": model,
        "flagged": flagged,
        "categories": categories,
        "category_scores": {name: float(score) for name, score in scores.items()},
        "category_applied_input_types": {
            name: [kind for kind in each if kind in ("text", "image")]
            for name, each in kinds.items()
        },
    }


def _of_type(value: Any, *types: type) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {}
    return {str(name)[:100]: each for name, each in value.items() if type(each) in types}


def merged(results: Iterable[Result]) -> Result | None:
    """One result of several: what any of them flags, and the highest scores. None: of none."""
    whole: Result | None = None
    for result in results:
        whole = result if whole is None else _both(whole, result)
    return whole


def _both(first: Result, second: Result) -> Result:
    if "error" in (first["type"], second["type"]):
        return first if first["type"] == "error" else second
    scores, more = first["category_scores"], second["category_scores"]
    kinds, more_kinds = (each["category_applied_input_types"] for each in (first, second))
    return {
        **first,
        "flagged": first["flagged"] or second["flagged"],
        "categories": {
            name: first["categories"].get(name, False) or second["categories"].get(name, False)
            for name in first["categories"] | second["categories"]
        },
        "category_scores": {
            name: max(scores.get(name, 0.0), more.get(name, 0.0)) for name in scores | more
        },
        "category_applied_input_types": {
            name: sorted({*kinds.get(name, ()), *more_kinds.get(name, ())}, reverse=True)
            for name in kinds | more_kinds
        },
    }


def unflagged(model: str) -> Result:
    """The result where there is nothing to moderate."""
    return {
        "type": "moderation_result",
        "model": model,
        "flagged": False,
        "categories": {},
        "category_scores": {},
        "category_applied_input_types": {},
    }


def failed(code: str, message: str) -> Result:
    """The result where a moderation has failed, or was not made."""
    return {"type": "error", "code": code, "message": message}


logger = structlog.get_logger()

_PATH = "/moderations"
_UNAVAILABLE = "moderation_unavailable"
_PASSED = 20_000
"""Items that a process remembers, with one result for each call."""
_TEXTS = ("message", "reasoning")
"""Types of items whose text is in events as soon as it has come."""
_NOT_MADE = failed("not_moderated", "The response ended before its output was moderated.")


class Judge:
    """Calls the moderation model of one response."""

    def __init__(
        self, resources: Resources, attempt: Attempt, model: str, candidates: Sequence[Candidate]
    ) -> None:
        """`candidates`: the upstreams that serve the model, at least one."""
        self._resources = resources
        self._attempt = attempt
        self.model = model
        self._candidates = candidates

    @property
    def _settings(self) -> ModerationSettings:
        return self._resources.settings.moderation

    async def judge(self, text: str, images: Sequence[str] = ()) -> Result:
        """The result for a text and images, up to the first call that flags something. Raises
        RunError if no upstream answers."""
        calls: list[Any] = pieces(text.strip(), self._settings.characters)
        calls += [[{"type": "image_url", "image_url": {"url": url}}] for url in images]
        result: Result | None = None
        for value in calls:
            answers = await first_answer(
                self._attempt, self._candidates, partial(self._call, value)
            )
            result = merged([*([result] if result else []), *answers])
            if result is not None and result["flagged"]:
                break
        return result or unflagged(self.model)

    async def _call(self, value: Any, candidate: Candidate) -> list[Result]:
        # Without a permit of the upstream: the call of the model that waits for this has one, and
        # may have the only one.
        body = {"model": candidate.model, "input": value}
        try:
            async with asyncio.timeout(self._settings.time.total_seconds()):
                answer = await candidate.upstream.plain.call(_PATH, body)
            results = results_in(answer, self.model)
        except TimeoutError as error:
            message = "The moderation model did not answer in time."
            raise UpstreamFailed(message, reason=_UNAVAILABLE, is_temporary=True) from error
        except NoModeration as error:
            message = "The upstream's answer is no moderation."
            raise UpstreamFailed(message, reason=_UNAVAILABLE, may_be_request=True) from error
        except UpstreamFailed as failure:
            if failure.is_temporary:
                raise
            # Its words may blame the request and name the model: not those of the client.
            message = f"The moderation model '{self.model}' could not judge: {failure.message}"
            raise UpstreamFailed(message, reason=_UNAVAILABLE) from failure
        row = self._attempt.claim.row
        await count_call(
            self._resources,
            FeatureCall(
                new_uuid(),
                row.project_id,
                row.api_key_id,
                UsageKind.MODERATIONS,
                self.model,
                candidate.name,
                usage_in(answer) or NO_TOKENS,
            ),
        )
        return results


@dataclass(frozen=True, slots=True)
class JudgedItem:
    """What is judged of an item."""

    key: bytes
    """of the moderation model and the content"""
    text: str
    images: tuple[str, ...]

    @classmethod
    def of(cls, item: Item, model: str) -> "JudgedItem":
        """That of an item."""
        text, images = "\n".join(texts_of(item)), tuple(images_of(item))
        digest = hashlib.sha256(repr((model, text, images)).encode(errors="replace")).digest()
        return cls(digest, text, images)


class PassedItems:
    """Items that this process has had judged and that were not flagged, so that a long conversation
    is not judged anew with each of its responses."""

    def __init__(self) -> None:
        self._results: OrderedDict[bytes, Result] = OrderedDict()

    def get(self, item: JudgedItem) -> Result | None:
        """The result of the call in which it was judged."""
        return self._results.get(item.key)

    def add(self, items: Iterable[JudgedItem], result: Result) -> None:
        """Remembers them; the oldest are forgotten."""
        for item in items:
            self._results[item.key] = result
        while len(self._results) > _PASSED:
            self._results.popitem(last=False)


class RunModeration:
    """As `Moderation` (worker/run/moderation.py)."""

    def __init__(
        self,
        judge: Judge,
        policy: ModerationPolicy,
        settings: ModerationSettings,
        attempt: Attempt,
        run_input: RunInput,
        passed: "PassedItems",
    ) -> None:
        self._judge = judge
        self._policy = policy
        self._settings = settings
        self._attempt = attempt
        self._run_input = run_input
        self._passed = passed
        self._input: Result | None = None
        self._output: Result | None = None

    @property
    def holds_back(self) -> bool:
        return self._policy.blocks_output

    async def admits_input(self) -> bool:
        # What was blocked may be in the history of a response that continues it.
        given, blocks = self._run_input, self._policy.blocks_input
        first = 0 if blocks else len(given.history) - given.own_count
        items = [
            JudgedItem.of(item, self._judge.model)
            for item in given.with_files(given.history[first:])
        ]
        known = [result for each in items if (result := self._passed.get(each)) is not None]
        fresh = [each for each in items if self._passed.get(each) is None]
        text = "\n".join(each.text for each in fresh)
        images = [url for each in fresh for url in each.images]
        result = await self._result(text, images, blocks=blocks)
        if result.get("flagged") is False:
            self._passed.add(fresh, result)
        self._input = merged([result, *known])
        self._show()
        if blocks and result.get("flagged"):
            return False
        if self._attempt.output.items:
            await self._judge_output("\n".join(texts_of(self._attempt.output.items)))
        return True

    def gate(self, shadow: Turn[Any]) -> Gate:
        return TurnGate(shadow, self._may_pass, self._settings)

    async def judge(self, turn: Turn[Any]) -> None:
        await self._judge_output("\n".join(texts_of(turn.output)))

    async def _may_pass(self, text: str) -> bool:
        await self._judge_output(text)
        return self._output is not None and not self._output.get("flagged")

    async def _judge_output(self, text: str) -> None:
        result = await self._result(text, (), blocks=self._policy.blocks_output)
        self._output = merged([*([self._output] if self._output else []), result])
        self._show()

    async def _result(self, text: str, images: Sequence[str], *, blocks: bool) -> Result:
        """Raises RunError if there is none and nothing may pass without."""
        try:
            return await self._judge.judge(text, images)
        except (UpstreamFailed, LimitReached, Deferred) as error:
            if blocks:
                raise
            logger.warning("not_moderated", response=self._attempt.facts.id, error=_words(error))
            return failed(_UNAVAILABLE, _words(error))

    def _show(self) -> None:
        self._attempt.output.moderation = {
            "input": self._input or unflagged(self._judge.model),
            "output": self._output or _NOT_MADE,
        }


def _words(error: RunError) -> str:
    if isinstance(error, Deferred):
        return error.failures[-1].message
    return str(error)


class TurnGate:
    """As `Gate`. It translates everything twice: `shadow` at once, to know the text, and the turn
    itself when the text has passed. So the state of the turn never has what has not passed."""

    def __init__(
        self,
        shadow: Turn[Any],
        may_pass: Callable[[str], Awaitable[bool]],
        settings: ModerationSettings,
    ) -> None:
        self._shadow = shadow
        self._may_pass = may_pass
        self._settings = settings
        self._texts = EventTexts()
        self._held: list[StreamEvent] = []
        self._text = self._before = ""
        """What was written since the last call, and the end of what has passed: words may be
        divided."""
        self._since = 0.0
        self._has_hidden = False
        """Something was written that no event has shown: the rest passes at the end, as a whole."""

    async def release(self, chunks: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
        if not self._held:
            self._since = time.monotonic()
        self._held += chunks
        try:
            for chunk in chunks:
                weight, events = self._shadow.weight, self._shadow.feed(chunk)
                self._text += self._texts.of(events)
                # Arguments of some calls are in no event before they are complete.
                self._has_hidden |= not events and self._shadow.weight > weight
        except RunError:
            # The turn itself raises it for the same chunk.
            self._text += self._calls()
            return await self._release_all()
        if self._has_hidden:
            return ()
        is_due = time.monotonic() - self._since >= self._settings.hold.total_seconds()
        if len(self._text) >= self._settings.window or is_due:
            return await self._release_all()
        return ()

    async def finish(self, *, done_seen: bool) -> Sequence[StreamEvent]:
        self._text += self._texts.of(self._shadow.finish(done_seen=done_seen))
        self._text += self._calls()
        return await self._release_all()

    def _calls(self) -> str:
        """The text of all items but messages and reasoning, whose text is in events."""
        items = [item for item in self._shadow.output if item["type"] not in _TEXTS]
        return "\n".join(("", *texts_of(items))) if items else ""

    async def _release_all(self) -> Sequence[StreamEvent]:
        if self._text.strip():
            if not await self._may_pass(self._before + self._text):
                raise OutputFlagged(self._shadow.usage)
            self._before = (self._before + self._text)[-self._settings.window :]
        held, self._held, self._text = self._held, [], ""
        return held


class ModerationFeature(WorkerFeature):
    """Opens the moderation of runs."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self._passed = PassedItems()
        resources.moderations.append(self._open)

    async def _open(self, attempt: Attempt, run_input: RunInput) -> Moderation | None:
        wanted = attempt.facts.parameters.get("moderation")
        if wanted is None:
            return None
        resources, project = self.resources, attempt.claim.row.project_id
        policy = await resources.policies.policy(project)
        served = resources.upstreams.candidates(attempt.facts.model, project, policy)
        if moderated_by_upstreams([each.upstream.settings for each in served]):
            return None
        moderation = ModerationPolicy.of(wanted)
        try:
            candidates = resources.upstreams.candidates(moderation.model, project, policy)
        except UpstreamFailed:
            logger.warning("no_moderation_model", response=response_id(attempt.claim.id))
            return None
        judge = Judge(resources, attempt, moderation.model, candidates)
        settings = resources.settings.moderation
        return RunModeration(judge, moderation, settings, attempt, run_input, self._passed)


FEATURE = ModerationFeature
