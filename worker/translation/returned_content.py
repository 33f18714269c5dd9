"""What an upstream wants back in later turns, and how it is stored between them: the reasoning of
its model, and where each tool call comes from.

**Reasoning.** A reasoning item shows the readable text. The rest that the upstream sent, such as
the signatures in OpenRouter's `reasoning_details`, is sealed into the item's `encrypted_content`,
together with the text: clients that keep the history themselves often send nothing else back.
worker/run/sealing.py unseals it into the item's field `sealed`.

**Tool calls.** Clients see an item id and a call id of the Responses API. The upstream may have
sent another id, and fields that only it understands (Gemini: `extra_content` with a signature).
Both are kept sealed (worker/run/sealing.py), and go back to this upstream alone. Other upstreams
get ids that they accept.
"""

import hashlib
import json
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.config.dialect import CallIdForm, ReasoningBack
from models.wire.events import Item
from models.wire.pairing import is_call

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

    def add(self, item: Item) -> list[Any]:
        """Adds a reasoning item, and returns its details. An item without text and details adds
        nothing."""
        unsealed = item.get("sealed", {})
        text = "".join(part["text"] for part in item.get("content", ())) or unsealed.get("text", "")
        if text:
            self._texts.append(text)
        details = list(unsealed.get("details", ()))
        self._details += details
        return details

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


_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""Ids that any upstream without a form of its own accepts: OpenAI takes at most 40 characters."""
_NINE = re.compile(r"[A-Za-z0-9]{9}")
_ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """The origin of one call."""

    upstream: str
    """The name of the upstream that made it."""
    step: str
    """The same for all calls of one turn of the model."""
    id: str | None = None
    """The upstream's id of the call; None: the one that clients see."""
    call: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the call that are not known."""
    function: Mapping[str, Any] = field(default_factory=dict)
    """Those of its object `function`."""
    message: Mapping[str, Any] = field(default_factory=dict)
    """Those of the message that contains the calls; only in the first call of a turn."""
    position: int = 0
    """Of the call among those of its turn."""

    @property
    def has_fields(self) -> bool:
        """Whether there is more than an id."""
        return bool(self.call or self.function or self.message)

    def to_json(self) -> dict[str, Any]:
        """What is sealed. The fields are one text: an upstream may send integers of any size."""
        fields = [self.call, self.function, self.message]
        return {
            "upstream": self.upstream,
            "step": self.step,
            "id": self.id,
            "position": self.position,
            "fields": json.dumps(fields, ensure_ascii=False) if self.has_fields else None,
        }

    @classmethod
    def from_json(cls, sealed: Mapping[str, Any]) -> "CallOrigin":
        """The origin in the content that `to_json` made."""
        call, function, message = json.loads(sealed["fields"]) if sealed["fields"] else ({}, {}, {})
        return cls(
            sealed["upstream"],
            sealed["step"],
            sealed["id"],
            call,
            function,
            message,
            sealed["position"],
        )


SealOrigin = Callable[[str, CallOrigin], dict[str, str]]
"""The id under which clients know a call, and its origin -> what is stored of it."""


def is_plain_id(call_id: str) -> bool:
    """Whether every upstream without a form of its own accepts this id."""
    return _PLAIN_ID.fullmatch(call_id) is not None


def accepted_id(call_id: str, form: CallIdForm, name: str = "", number: int = 0) -> str:
    """The id for an upstream that did not make it: the same one if it has the form that this
    upstream accepts, else one that is made from it, always the same. `name`: of the function;
    `number`: of the call in the history, from 0."""
    if form == "name_and_index":  # models read the name in it
        return f"functions.{name}:{number}"
    if form == "alphanumeric_9":
        if _NINE.fullmatch(call_id):
            return call_id
        number = int.from_bytes(hashlib.sha256(call_id.encode()).digest())
        return "".join(
            _ALPHANUMERIC[number // len(_ALPHANUMERIC) ** place % len(_ALPHANUMERIC)]
            for place in range(9)
        )
    if is_plain_id(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:32]}"


def item_key(item: Item) -> str:
    """The key of an item in the history of one response: its id, with the call id of a client's
    call, since clients may give one id to several items."""
    item_id: str = item.get("id", "")
    return f"{item_id} {item['call_id']}" if is_call(item) else item_id


def origin_key(item: Item) -> str:
    """The key of the item that has the origin of this call: for an approved call the request for
    its approval, which the model made."""
    approved: str | None = item.get("approval_request_id")
    return approved if approved is not None and item["type"] == "mcp_call" else item_key(item)


@dataclass(frozen=True, slots=True)
class ReturnedCalls:
    """How the calls of a history are shown to one upstream."""

    upstream: str = ""
    """Its name."""
    origins: Mapping[str, CallOrigin] = field(default_factory=dict)
    """`origin_key` of a call -> its origin, where one is kept."""
    id_form: CallIdForm = "as_is"
    foreign_fields: Mapping[str, Any] = field(default_factory=dict)
    """The setting `foreign_call_fields`."""

    def call_id(self, known_id: str, origin: CallOrigin | None, name: str, number: int) -> str:
        """The id to send for a call that clients know under `known_id`. `name`, `number`: as for
        `accepted_id`."""
        if origin is not None and origin.upstream == self.upstream:
            return origin.id or known_id
        return accepted_id(known_id, self.id_form, name, number)

    def add_fields(
        self, message: dict[str, Any], origins: list[CallOrigin | None]
    ) -> dict[str, Any]:
        """The message with the fields that this upstream sent with its `tool_calls`, whose
        `origins` these are. If it sent none with any of them, the first call gets the fields for
        foreign calls."""
        own = [
            origin if origin is not None and origin.upstream == self.upstream else None
            for origin in origins
        ]
        calls: list[dict[str, Any]] = message["tool_calls"]
        if not any(origin is not None and origin.has_fields for origin in own):
            if self.foreign_fields:
                calls[0] = {**self.foreign_fields, **calls[0]}
            return message
        for number, origin in enumerate(own):
            if origin is not None:
                call = calls[number]
                function = {**origin.function, **call["function"]}
                calls[number] = {**origin.call, **call, "function": function}
                message = {**origin.message, **message}
        return message

    def first_order(self, origins: list[CallOrigin | None]) -> list[int]:
        """The numbers of the calls of a message, whose `origins` these are, in the order in which
        this upstream made them, also if a client has changed it: Gemini signs the first call only,
        and refuses another as the first. As they are, if it is not known for all."""
        numbers = list(range(len(origins)))
        own = [each for each in origins if each is not None and each.upstream == self.upstream]
        if len(own) < len(origins) or len({origin.step for origin in own}) > 1:
            return numbers
        return sorted(numbers, key=lambda number: own[number].position)
