"""What a model wants back of its own thoughts, and how it is kept between turns (contract §6.1, §7.1).

A reasoning item shows what may be read. What else the upstream sent with it, such as the signatures in OpenRouter's `reasoning_details`,
travels sealed in the item's `encrypted_content`, with the text once more, because clients that hold the history themselves often send
nothing else back. Who opens it puts what was inside as `sealed` into the item (worker/run/reasoning.py).
"""

from collections.abc import Callable
from typing import Any

from models.wire.events import Item
from worker.translation.dialect import ReasoningBack

Seal = Callable[[dict[str, Any]], str]
"""What is to be kept -> the text that a client keeps for us."""

_PIECE_FIELDS = {"reasoning.text": "text", "reasoning.summary": "summary", "thinking": "thinking"}
"""type of a detail that comes in pieces -> the field that they add up to"""


def reasoning_payload(text: str, details: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of one reasoning item: its text, and its details put together from the pieces they came in."""
    kept: dict[str, Any] = {"text": text}
    if details:
        kept["details"] = _join_pieces(details)
    return kept


def _join_pieces(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pieces of one detail follow each other; a signature comes with the last of them."""
    whole: list[tuple[dict[str, Any], list[str]]] = []
    for piece in details:
        growing = _PIECE_FIELDS.get(str(piece.get("type")))
        if growing and whole and _continues(whole[-1][0], piece):
            detail, heard = whole[-1]
            detail.update((name, value) for name, value in piece.items() if value not in (None, ""))
        else:
            detail, heard = dict(piece), []
            whole.append((detail, heard))
        if growing and isinstance(said := piece.get(growing), str):
            heard.append(said)
    return [
        {**detail, _PIECE_FIELDS[detail["type"]]: "".join(heard)} if heard else detail
        for detail, heard in whole
    ]


def _continues(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """A signature ends what it signs."""
    return not one.get("signature") and all(
        one.get(name) == other.get(name) for name in ("type", "index")
    )


_TEXT_FIELDS = {"reasoning_details": "reasoning", "thinking_blocks": "reasoning_content"}
"""Field of details -> the one that the same upstream takes plain text in."""


class TurnReasoning:
    """The reasoning of one turn of the model, as its message is to carry it back."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._details: list[Any] = []

    def add(self, item: Item) -> None:
        """A reasoning item; one of which nothing is known adds nothing."""
        sealed = item.get("sealed", {})
        text = "".join(part["text"] for part in item.get("content", ())) or sealed.get("text", "")
        if text:
            self._texts.append(text)
        self._details += sealed.get("details", ())

    def fields(self, reasoning_back: ReasoningBack, content: str | None) -> dict[str, Any]:
        """What the assistant's message gains, `content` being its text. Without details an upstream that knows them takes the text."""
        text = "\n\n".join(self._texts)
        if reasoning_back in _TEXT_FIELDS and self._details:
            return {reasoning_back: list(self._details)}
        if reasoning_back == "none" or not text:
            return {}
        if reasoning_back == "think_tags":
            return {"content": f"<think>\n{text}\n</think>\n\n{content or ''}"}
        return {_TEXT_FIELDS.get(reasoning_back, reasoning_back): text}
