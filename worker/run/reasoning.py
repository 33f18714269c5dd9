"""Seals the reasoning that an upstream wants back in a later turn, and unseals it.

The client keeps it as `encrypted_content` (worker/translation/items/reasoning.py). What a native
upstream has encrypted itself is only tagged and bound to the project.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from models.secrets import Sealer, TokenKind, Unreadable
from models.wire.encrypted_content import TaggedContent
from models.wire.events import Item
from models.wire.includes import SEALED_REASONING
from worker.translation.items.reasoning import Seal
from worker.translation.request_parameters import Dialect

_SIGNED_FORMS = ("reasoning_details", "thinking_blocks")
"""Dialects in which the upstream wants back more than the visible text."""
_KIND: TokenKind = "reasoning"


def reasoning_sealer(
    sealer: Sealer, project: UUID, parameters: dict[str, Any], dialect: Dialect
) -> Seal | None:
    """Makes `encrypted_content`; None if none is made.

    It is made if the client asks for it, or if the upstream wants back more than the visible text;
    in that case it is stored and not shown. Without a sealing key none is made.
    """
    if not sealer.has_key or (
        SEALED_REASONING not in parameters.get("include", ())
        and dialect.reasoning_back not in _SIGNED_FORMS
    ):
        return None
    return partial(_seal, sealer, project)


def unseal_reasoning(
    history: list[Item], sealer: Sealer, project: UUID, dialect: Dialect
) -> list[Item]:
    """The history with the unsealed content of each reasoning item under `sealed`.

    Items that cannot be unsealed stay as they are: they were sealed by another server, for another
    project or with a removed key. Nothing is unsealed for an upstream that takes no reasoning back.
    """
    if dialect.reasoning_back == "none":
        return history
    return [
        _unseal(item, sealer, project)
        if item["type"] == "reasoning" and "encrypted_content" in item
        else item
        for item in history
    ]


def _seal(sealer: Sealer, project: UUID, content: dict[str, Any]) -> str:
    return sealer.seal_token(_KIND, project, content)


def _unseal(item: Item, sealer: Sealer, project: UUID) -> Item:
    content = open_reasoning(item["encrypted_content"], sealer, project)
    return {**item, "sealed": content} if content else item


def open_reasoning(sealed: str, sealer: Sealer, project: UUID) -> dict[str, Any]:
    """The content of a reasoning item; empty if it cannot be unsealed."""
    try:
        content: dict[str, Any] = sealer.open_token(_KIND, project, sealed)
    except Unreadable:
        return {}
    return content


def content_tagger(sealer: Sealer, project: UUID, upstream: str) -> Callable[[str], str]:
    """Makes the stored form of a native upstream's `encrypted_content`, which goes back only to
    this upstream, and only from this project."""

    def tag(encrypted: str) -> str:
        mark = sealer.mark(project, upstream, encrypted)
        return TaggedContent(upstream, encrypted, mark).encode()

    return tag
