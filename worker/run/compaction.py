"""Compaction: when the history is summed up, how, and what the model is told of it afterwards (docs/state.md)."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.config.settings import CompactionSettings
from models.errors import UpstreamFailed
from models.secrets import NoKey, Sealer, Unreadable
from models.wire.compaction import (
    compact_history,
    expand_compaction,
    first_unanswered,
    is_tool_listing,
    newest_compaction,
)
from models.wire.events import Item
from worker.translation.history.transcript import (
    SYSTEM_PROMPT,
    compaction_prompt,
    entries,
    pack_entries,
)
from worker.upstream.overflow import OVERFLOW

_NOT_FOR_SUMMARIES = frozenset(
    (
        *(
            "instructions",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "max_tool_calls",
            "max_output_tokens",
            "text",
            "include",
        ),
        *("stream_options", "top_logprobs", "truncation", "context_management", "metadata"),
    )
)
"""Parameters that shape the answer the client waits for; the others (model settings, tiers, cache keys) hold for summaries too."""

_MIN_PART = 2000
"""Characters of a part below which it is not the part that is too long."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What one call of the model gave."""

    text: str
    usage: dict[str, Any] | None


CallModel = Callable[[dict[str, Any], list[Item]], Awaitable[ModelReply]]
"""Parameters and history -> the model's answer. Raises RunError."""


class Compactions:
    """The compactions of one response: those it was given, and those it makes."""

    def __init__(
        self,
        project: UUID,
        sealer: Sealer,
        settings: CompactionSettings,
        parameters: dict[str, Any],
        *,
        is_only_compaction: bool = False,
    ) -> None:
        """`is_all`: the client wants a compaction and nothing else."""
        self.is_only_compaction = is_only_compaction
        self._project = project
        self._sealer = sealer
        self._settings = settings
        self._parameters = parameters
        self._unsealed: dict[str, Any] = {}
        """What was opened before: `encrypted_content` -> what it holds."""

    @property
    def threshold(self) -> int | None:
        """Tokens of context from which there is to be a compaction; None: the client wants none."""
        edits = self._parameters.get("context_management")
        if edits is None:
            return None
        thresholds: list[int] = [
            edit.get("compact_threshold", self._settings.threshold) for edit in edits
        ]
        return min(thresholds)

    def expand(self, items: list[Item]) -> list[Item]:
        """The history as the model is to be told it. Raises UpstreamFailed when a compaction cannot be read any more."""
        kept = [item for item in items if item["type"] != "compaction_trigger"]
        return expand_compaction(kept, self._unseal)

    def _unseal(self, content: str) -> Any:
        if content not in self._unsealed:
            try:
                self._unsealed[content] = self._sealer.open_token(
                    "compaction", self._project, content
                )
            except Unreadable:
                raise UpstreamFailed(
                    "A compaction in the history can no longer be read: this server's sealing keys have changed.",
                    code="invalid_prompt", reason="compaction_unreadable", status=400, param="previous_response_id",
                    envelope_code="invalid_encrypted_content",
                ) from None  # fmt: skip
        return self._unsealed[content]

    def is_possible(self, history: Sequence[Item]) -> bool:
        """Whether anything can be gained: the model has said or called something since the last compaction."""
        return any(
            not is_tool_listing(item) and (item["type"] != "message" or item["role"] == "assistant")
            for item in history[: first_unanswered(history)]
        )

    async def summary(
        self,
        history: list[Item],
        call_model: CallModel,
        add_call_usage: Callable[[dict[str, Any] | None], None],
    ) -> str:
        """The `encrypted_content` of a compaction of this history. `spent` is told each call's usage. Raises RunError."""
        summed_up = history[: first_unanswered(history)] or history
        text = await self._summarize(entries(summed_up), call_model, add_call_usage)
        held = compact_history(history, text, self._settings.user_messages)
        try:
            return self._sealer.seal_token("compaction", self._project, held.to_json())
        except NoKey:
            raise UpstreamFailed(
                "The history cannot be compacted: this server has no key to seal it with.",
                reason="no_sealing_key",
                status=500,
            ) from None

    async def _summarize(
        self,
        texts: list[str],
        call_model: CallModel,
        add_call_usage: Callable[[dict[str, Any] | None], None],
    ) -> str:
        """All at once, or where that is too long for the model in ever smaller parts, each with the summary of those before it."""
        parameters = {
            name: value
            for name, value in self._parameters.items()
            if name not in _NOT_FOR_SUMMARIES
        }
        instructions = self._parameters.get("instructions")
        left: Iterator[str] = iter(["\n".join(texts)])
        so_far, part = "", next(left)
        for _ in range(self._settings.calls):
            try:
                reply = await call_model(
                    {**parameters, "instructions": SYSTEM_PROMPT},
                    [_user_message(compaction_prompt(part, so_far, instructions))],
                )
            except UpstreamFailed as failure:
                if failure.reason != OVERFLOW or len(part) < _MIN_PART:
                    raise
                left = pack_entries([part, *left], len(part) // 2)
                part = next(left)
                continue
            add_call_usage(reply.usage)
            so_far = reply.text
            if not so_far:
                raise UpstreamFailed(
                    "The model gave no summary of the history.", reason="compaction_empty"
                )
            following = next(left, None)
            if following is None:
                return so_far
            part = following
        raise UpstreamFailed(
            "The history is too long to be compacted.",
            reason="compaction_too_long",
            code="invalid_prompt",
            status=400,
        )


def expand_input(
    history: list[Item], own_count: int, compactions: Compactions
) -> tuple[list[Item], int, int]:
    """The history opened, how many items at its end are the response's own input, and how many of that input stood before them."""
    first_own = len(history) - own_count
    position = newest_compaction(history)
    skipped = max(0, position + 1 - first_own)
    expanded = compactions.expand(history)
    triggers = sum(item["type"] == "compaction_trigger" for item in history[first_own + skipped :])
    return expanded, own_count - skipped - triggers, skipped


def ends_with_trigger(history: Sequence[Item]) -> bool:
    """Whether the client wants nothing but a compaction: the last input item asks for it."""
    return bool(history) and history[-1]["type"] == "compaction_trigger"


def _user_message(text: str) -> Item:
    content = [{"type": "input_text", "text": text}]
    return {
        "id": "msg_compaction",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": content,
    }
