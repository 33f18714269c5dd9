"""Compaction: a summary in place of the older part of a history (docs/state.md)."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.config.groups import CompactionSettings
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
from models.wire.response import STOP
from worker.translation.history.compaction import (
    SYSTEM_PROMPT,
    compaction_prompt,
    entries,
    pack_entries,
)
from worker.upstream.error_rules import OVERFLOW

_NOT_FOR_SUMMARIES = frozenset(
    (
        "instructions",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_tool_calls",
        "max_output_tokens",
        "text",
        "include",
        "stream_options",
        "top_logprobs",
        "truncation",
        "context_management",
        "metadata",
        STOP,
    )
)
"""Parameters that shape the visible output. A summary is made with all others."""

_MIN_PART = 2000
"""Characters. A part that is shorter and still too long for the model is not halved again."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The reply to one call of the model."""

    text: str
    usage: dict[str, Any] | None


CallModel = Callable[[dict[str, Any], list[Item]], Awaitable[ModelReply]]
"""Calls the model with these parameters and this history. Raises RunError."""


class Compactions:
    """Reads the compactions in a response's history, and makes new ones."""

    def __init__(
        self,
        project: UUID,
        sealer: Sealer,
        settings: CompactionSettings,
        parameters: dict[str, Any],
        history_parameter: str,
    ) -> None:
        """`history_parameter`: the request's parameter that names its history."""
        self._project = project
        self._sealer = sealer
        self._settings = settings
        self._parameters = parameters
        self._history_parameter = history_parameter
        self._unsealed: dict[str, Any] = {}
        """Cache: `encrypted_content` -> the unsealed content."""

    @property
    def threshold(self) -> int | None:
        """Input tokens above which the history is compacted; None: the request does not ask."""
        edits = self._parameters.get("context_management")
        if edits is None:
            return None
        default = self._settings.threshold
        thresholds: list[int] = [edit.get("compact_threshold", default) for edit in edits]
        return min(thresholds)

    def expand(self, items: list[Item]) -> list[Item]:
        """The history for the model: the last compaction's content in place of what it replaces.

        Raises UpstreamFailed if a compaction cannot be unsealed.
        """
        items = [item for item in items if item["type"] != "compaction_trigger"]
        return expand_compaction(items, self._unseal)

    def _unseal(self, content: str) -> Any:
        if content not in self._unsealed:
            try:
                self._unsealed[content] = self._sealer.open_token(
                    "compaction", self._project, content
                )
            except Unreadable:
                raise UpstreamFailed.of_request(
                    "A compaction in the history can no longer be read: "
                    "this server's sealing keys have changed.",
                    "compaction_unreadable",
                    param=self._history_parameter,
                    envelope_code="invalid_encrypted_content",
                ) from None
        return self._unsealed[content]

    def is_possible(self, history: Sequence[Item]) -> bool:
        """Whether the request asks for compactions and one would shorten this history.

        It would if the history holds items of the model since the last compaction.
        """
        return self.threshold is not None and any(
            not is_tool_listing(item) and (item["type"] != "message" or item["role"] == "assistant")
            for item in history[: first_unanswered(history)]
        )

    async def summary(
        self,
        history: list[Item],
        call_model: CallModel,
        add_call_usage: Callable[[dict[str, Any] | None], None],
    ) -> str:
        """The `encrypted_content` of a compaction of this history.

        `add_call_usage` gets the usage of each call of the model. Raises RunError.
        """
        summarized = history[: first_unanswered(history)] or history
        text = await self._summarize(entries(summarized), call_model, add_call_usage)
        content = compact_history(history, text, self._settings.user_messages)
        try:
            return self._sealer.seal_token("compaction", self._project, content.to_json())
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
        """A summary of all texts: in one call, or in parts if they are too long for the model.

        Each part is sent with the summary of the earlier parts. A part that is too long is halved.
        """
        parameters = parameters_of_summary(self._parameters)
        instructions = self._parameters.get("instructions")
        parts: Iterator[str] = iter(["\n".join(texts)])
        summary, part = "", next(parts)
        for _ in range(self._settings.calls):
            try:
                reply = await call_model(
                    {**parameters, "instructions": SYSTEM_PROMPT},
                    [user_message(compaction_prompt(part, summary, instructions))],
                )
            except UpstreamFailed as failure:
                if failure.reason != OVERFLOW or len(part) < _MIN_PART:
                    raise
                parts = pack_entries([part, *parts], len(part) // 2)
                part = next(parts)
                continue
            add_call_usage(reply.usage)
            summary = reply.text
            if not summary:
                raise UpstreamFailed(
                    "The model gave no summary of the history.", reason="compaction_empty"
                )
            next_part = next(parts, None)
            if next_part is None:
                return summary
            part = next_part
        raise UpstreamFailed.of_request(
            "The history is too long to be compacted.", "compaction_too_long"
        )


def parameters_of_summary(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a request with which a summary for it is made."""
    return {name: value for name, value in parameters.items() if name not in _NOT_FOR_SUMMARIES}


def expand_input(
    history: list[Item], own_count: int, compactions: Compactions
) -> tuple[list[Item], int, int]:
    """Expands the compactions of a loaded history.

    Returns the items, how many of the last ones are the response's input, and how many input items
    the newest compaction replaced. `own_count`: how many of the last items are the input.
    """
    first_own = len(history) - own_count
    position = newest_compaction(history)
    skipped = max(0, position + 1 - first_own)
    expanded = compactions.expand(history)
    triggers = sum(item["type"] == "compaction_trigger" for item in history[first_own + skipped :])
    return expanded, own_count - skipped - triggers, skipped


def ends_with_trigger(history: Sequence[Item]) -> bool:
    """Whether the last input item asks for a compaction, which is then the only output."""
    return bool(history) and history[-1]["type"] == "compaction_trigger"


def user_message(text: str) -> Item:
    """A message of a user that is part of no history: the material of a summary."""
    content = [{"type": "input_text", "text": text}]
    return {
        "id": "msg_material",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": content,
    }
