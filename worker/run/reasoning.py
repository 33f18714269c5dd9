"""Reasoning between turns: sealed for the client to keep, opened when it comes back (worker/translation/items/reasoning.py)."""

from functools import partial
from typing import Any
from uuid import UUID

from models.secrets import Sealer, TokenKind, Unreadable
from models.wire.events import Item
from models.wire.includes import SEALED_REASONING
from worker.translation.dialect import Dialect
from worker.translation.items.reasoning import Seal

_SIGNED_FORMS = ("reasoning_details", "thinking_blocks")
"""Ways in which upstreams want more back than can be shown."""
_KIND: TokenKind = "reasoning"


def reasoning_sealer(
    sealer: Sealer, project: UUID, parameters: dict[str, Any], dialect: Dialect
) -> Seal | None:
    """What makes `encrypted_content`: where the client asks for it, and where the upstream wants more back than can be shown, in which case
    it is only stored. None: there is to be none, also for want of a key."""
    if not sealer.has_key or (
        SEALED_REASONING not in parameters.get("include", ())
        and dialect.reasoning_back not in _SIGNED_FORMS
    ):
        return None
    return partial(_seal, sealer, project)


def unseal_reasoning(
    history: list[Item], sealer: Sealer, project: UUID, dialect: Dialect
) -> list[Item]:
    """The history, where each reasoning item that we have sealed says what is inside (`sealed`), if the upstream is to be told.

    What we cannot open was sealed by another server, for another project or with a key that is gone: it says nothing, and harms nothing.
    """
    if dialect.reasoning_back == "none":
        return history
    return [
        _unseal(item, sealer, project)
        if item["type"] == "reasoning" and "encrypted_content" in item
        else item
        for item in history
    ]


def _seal(sealer: Sealer, project: UUID, kept: dict[str, Any]) -> str:
    return sealer.seal_token(_KIND, project, kept)


def _unseal(item: Item, sealer: Sealer, project: UUID) -> Item:
    try:
        return {**item, "sealed": sealer.open_token(_KIND, project, item["encrypted_content"])}
    except Unreadable:
        return item
