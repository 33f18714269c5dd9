"""Seals what an upstream wants back in a later turn, and finds and unseals it there: reasoning, and
the origins of tool calls.

**Reasoning.** The client keeps it as `encrypted_content` (worker/translation/returned_content.py).
What a native upstream has encrypted itself is only tagged and bound to the project.

**Origins** (worker/translation/returned_content.py). One is stored in the row of its call's item
and goes with it: no event, no Response object and no list of items contains it. Calls that a client
sends back in its input are found by the id that the client knows: `call_id`, or the item's id of a
call that this server ran. A client that asks for sealed reasoning gets the origins of its calls
there as well, and so needs nothing that is stored. Without a sealing key none is kept.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from models.db.database import Pool, fetch_when_available
from models.db.queries.history import CALL_ORIGINS, StoredOrigin
from models.secrets import Sealer, TokenKind, Unreadable
from models.wire.encrypted_content import TaggedContent
from models.wire.events import Item
from models.wire.pairing import is_call
from models.wire.response import SEALED_REASONING
from worker.run.output import Output
from worker.translation.request_parameters import Dialect
from worker.translation.returned_content import CallOrigin, Seal, SealOrigin, item_key, origin_key

_SIGNED_FORMS = ("reasoning_details", "thinking_blocks")
"""Dialects in which the upstream wants back more than the visible text."""
_REASONING: TokenKind = "reasoning"


def reasoning_sealer(
    sealer: Sealer, project: UUID, parameters: dict[str, Any], dialect: Dialect, upstream: str
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
    return partial(_seal_reasoning, sealer, project, upstream)


def unseal_reasoning(
    history: list[Item], sealer: Sealer, project: UUID, dialect: Dialect, upstream: str
) -> list[Item]:
    """The history with the unsealed content of each reasoning item under `sealed`, for the upstream
    of this name: of another one's reasoning only the text.

    Items that cannot be unsealed stay as they are: they were sealed by another server, for another
    project or with a removed key. Nothing is unsealed for an upstream that takes no reasoning back.
    """
    if dialect.reasoning_back == "none":
        return history
    return [
        _unseal_reasoning(item, sealer, project, upstream)
        if item["type"] == "reasoning" and "encrypted_content" in item
        else item
        for item in history
    ]


def _seal_reasoning(sealer: Sealer, project: UUID, upstream: str, content: dict[str, Any]) -> str:
    return sealer.seal_token(_REASONING, project, {**content, "upstream": upstream})


def _unseal_reasoning(item: Item, sealer: Sealer, project: UUID, upstream: str) -> Item:
    content = open_reasoning(item["encrypted_content"], sealer, project)
    # What was sealed by an earlier release names no upstream.
    if content.get("upstream", upstream) != upstream:
        content.pop("details", None)
    return {**item, "sealed": content} if content else item


def open_reasoning(sealed: str, sealer: Sealer, project: UUID) -> dict[str, Any]:
    """The content of a reasoning item; empty if it cannot be unsealed."""
    try:
        content: dict[str, Any] = sealer.open_token(_REASONING, project, sealed)
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


ResultT = TypeVar("ResultT")

_CALL: TokenKind = "call"
_MANY = 100
"""Calls."""
_SERVER_CALLS = frozenset(
    (
        *("mcp_call", "mcp_approval_request", "web_search_call", "file_search_call"),
        "image_generation_call",
        "code_interpreter_call",
    )
)
"""Types of calls that this server runs."""


def origin_sealer(sealer: Sealer, project: UUID) -> SealOrigin | None:
    """Makes what is stored of an origin; None without a key."""
    return partial(_seal_origin, sealer, project) if sealer.has_key else None


def _seal_origin(
    sealer: Sealer, project: UUID, known_id: str, origin: CallOrigin
) -> dict[str, str]:
    token = sealer.seal_token(_CALL, project, origin.to_json())
    return {"key": _call_key(project, known_id), "origin": token}


def _call_key(project: UUID, known_id: str) -> str:
    """The key by which a call is found: no other project can make it from the id."""
    return hashlib.sha256(project.bytes + known_id.encode()).hexdigest()[:32]


class CallOrigins:
    """The origins of the calls in the history of one run."""

    def __init__(
        self, pool: Pool, sealer: Sealer, project: UUID, stored: dict[str, str | None]
    ) -> None:
        """`stored`: `item_key` -> origin, of each item of the history that was made here."""
        self._pool = pool
        self._sealer = sealer
        self._project = project
        self._tokens = stored
        self._carried: dict[str, CallOrigin] = {}
        """`item_key` -> origin, of calls that a client sent back with sealed reasoning."""
        self._opened: dict[str, CallOrigin] = {}
        """Cache: a token -> its content."""

    async def of(self, history: Sequence[Item], output: Output) -> dict[str, CallOrigin]:
        """`origin_key` of each call in `history` -> its origin, where one is kept. `output`: what
        the response has made. One statement for calls that are not known yet, none without any."""
        calls = {
            origin_key(item): item
            for item in history
            if is_call(item) or item["type"] in _SERVER_CALLS
        }
        if not calls or not self._sealer.has_key:
            return {}
        for entry in output.entries:
            self._tokens[item_key(entry.item)] = output.origins.get(entry.item["id"])
        # In a thread if there are many: each takes up to a tenth of a millisecond.
        run = _at_once if len(calls) < _MANY else asyncio.to_thread
        if not calls.keys() <= self._tokens.keys():
            await run(self._note_carried, history, calls)
        unknown = {key: item for key, item in calls.items() if key not in self._tokens}
        if unknown:
            keys = await run(self._call_keys, unknown)
            values = {"keys": sorted(set(keys.values()))}
            rows = await fetch_when_available(self._pool, CALL_ORIGINS, values)
            self._tokens.update(await run(_match, unknown, keys, rows))
        return await run(self._open_all, calls)

    def _note_carried(self, history: Sequence[Item], calls: Container[str]) -> None:
        """Notes the origins of calls of clients that are in a reasoning item before them."""
        by_call_id: dict[str, Any] = {}
        for item in history:
            if item["type"] == "reasoning" and "encrypted_content" in item:
                opened = open_reasoning(item["encrypted_content"], self._sealer, self._project)
                by_call_id.update(opened.get("calls", {}))
            elif is_call(item) and (sealed := by_call_id.get(item["call_id"])) is not None:
                key = item_key(item)
                if key in calls and key not in self._tokens:
                    self._carried[key] = CallOrigin.from_json(sealed)
                    self._tokens[key] = None

    def _call_keys(self, calls: dict[str, Item]) -> dict[str, str]:
        """`origin_key` -> the key of its row."""
        return {
            key: _call_key(self._project, item["call_id"] if is_call(item) else key)
            for key, item in calls.items()
        }

    def _open_all(self, calls: Iterable[str]) -> dict[str, CallOrigin]:
        found = {}
        for key in calls:
            token = self._tokens.get(key)
            origin = self._carried.get(key) if token is None else self._open(token)
            if origin is not None:
                found[key] = origin
        return found

    def _open(self, token: str) -> CallOrigin | None:
        """None if it was sealed with a removed key."""
        if token not in self._opened:
            try:
                content: dict[str, Any] = self._sealer.open_token(_CALL, self._project, token)
            except Unreadable:
                return None
            self._opened[token] = CallOrigin.from_json(content)
        return self._opened[token]


async def _at_once(function: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """As `asyncio.to_thread`, in this thread."""
    return function(*arguments)


def _match(
    calls: dict[str, Item], keys: dict[str, str], rows: Iterable[StoredOrigin]
) -> dict[str, str | None]:
    """`origin_key` -> origin, for calls that a client sent back. Last ones first: of several calls
    with one id, the last was made last. `rows`: newest first."""
    by_key: dict[str, list[StoredOrigin]] = defaultdict(list)
    for row in rows:
        by_key[row.call_key].append(row)
    return {key: _take(by_key[keys[key]], item) for key, item in reversed(calls.items())}


def _take(rows: list[StoredOrigin], item: Item) -> str | None:
    """Removes from `rows` the one that is most likely the call in `item`, and returns its origin:
    the one with its id, else the newest with its name and arguments, else the newest."""
    if not rows:
        return None
    content = hashlib.md5(_content(item).encode(), usedforsecurity=False).hexdigest()
    best = max(rows, key=lambda row: (row.item_id == item.get("id"), row.content == content))
    # A call without the item's id may be repeated in the history, and be stored once.
    if len(rows) > 1:
        rows.remove(best)
    return best.origin


def _content(item: Item) -> str:
    arguments = item.get("arguments", item.get("input", ""))
    return f"{item.get('name', '')} {arguments if isinstance(arguments, str) else ''}"
