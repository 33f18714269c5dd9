"""The reasoning that a model wants back in later turns, and how it is stored between them.

A reasoning item shows the readable text. The rest that the upstream sent, such as the signatures in
OpenRouter's `reasoning_details`, is sealed into the item's `encrypted_content`, together with the
text: clients that keep the history themselves often send nothing else back. worker/run/sealing.py
unseals it into the item's field `sealed`.
"""

from collections.abc import Callable
from typing import Any

from models.config.dialect import ReasoningBack
from models.wire.events import Item

Seal = Callable[[dict[str, Any]], str]
"""A reasoning payload -> the encrypted text that the client stores."""

_PIECE_FIELDS = {"reasoning.text": "text", "reasoning.summary": "summary", "thinking": "thinking"}
"""type of a detail that arrives in pieces -> its field that the pieces add up to."""


def reasoning_payload(text: str, details: list[dict[str, Any]]) -> dict[str, Any]:
    """What is sealed of one reasoning item: its text, and its details, each joined from its
    pieces."""
    payload: dict[str, Any] = {"text": text}
    if details:
        payload["details"] = _join_pieces(details)
    return payload


def _join_pieces(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins the pieces of each detail. They follow each other; the last one brings the
    signature."""
    joined: list[tuple[dict[str, Any], list[str]]] = []
    for piece in details:
        text_field = _PIECE_FIELDS.get(str(piece.get("type")))
        if text_field and joined and _continues(joined[-1][0], piece):
            detail, texts = joined[-1]
            detail.update((name, value) for name, value in piece.items() if value not in (None, ""))
        else:
            detail, texts = dict(piece), []
            joined.append((detail, texts))
        if text_field and isinstance(text := piece.get(text_field), str):
            texts.append(text)
    return [
        {**detail, _PIECE_FIELDS[detail["type"]]: "".join(texts)} if texts else detail
        for detail, texts in joined
    ]


def _continues(detail: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Whether the piece belongs to the detail before it. A signature ends a detail."""
    return not detail.get("signature") and all(
        detail.get(name) == piece.get(name) for name in ("type", "index")
    )


_TEXT_FIELDS = {"reasoning_details": "reasoning", "thinking_blocks": "reasoning_content"}
"""Field of details -> the field in which the same upstream takes plain text."""


class TurnReasoning:
    """The reasoning of one turn of the model, for the assistant's message in the next request."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._details: list[Any] = []

    def add(self, item: Item) -> None:
        """Adds a reasoning item. An item without text and details adds nothing."""
        unsealed = item.get("sealed", {})
        text = "".join(part["text"] for part in item.get("content", ())) or unsealed.get("text", "")
        if text:
            self._texts.append(text)
        self._details += unsealed.get("details", ())

    def fields(self, reasoning_back: ReasoningBack, content: str | None) -> dict[str, Any]:
        """The fields for the assistant's message, whose text is `content`. Without details, an
        upstream that takes details gets the text."""
        text = "\n\n".join(self._texts)
        if reasoning_back in _TEXT_FIELDS and self._details:
            return {reasoning_back: list(self._details)}
        if reasoning_back == "none" or not text:
            return {}
        if reasoning_back == "think_tags":
            return {"content": f"<think>\n{text}\n</think>\n\n{content or ''}"}
        return {_TEXT_FIELDS.get(reasoning_back, reasoning_back): text}
