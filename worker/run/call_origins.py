"""Seals the origins of tool calls, and finds them for the calls of a history.

An origin (worker/translation/call_origin.py) is stored in the row of its call's item and goes with
it: no event, no Response object and no list of items contains it. Calls that a client sends back in
its input are found by the id that the client knows: `call_id`, or the item's id of a call that this
server ran. A client that asks for sealed reasoning gets the origins of its calls there as well, and
so needs nothing that is stored. Without a sealing key none is kept.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from models.db.database import Pool, fetch_when_available
from models.db.queries.history import CALL_ORIGINS, StoredOrigin
from models.secrets import Sealer, TokenKind, Unreadable
from models.wire.events import Item
from models.wire.pairing import is_call
from worker.run.output import Output
from worker.run.reasoning import open_reasoning
from worker.translation.call_origin import CallOrigin, SealOrigin, item_key, origin_key

_KIND: TokenKind = "call"
_SERVER_CALLS = frozenset(
    ("mcp_call", "mcp_approval_request", "web_search_call", "file_search_call")
)
"""Types of calls that this server runs."""


def origin_sealer(sealer: Sealer, project: UUID) -> SealOrigin | None:
    """Makes what is stored of an origin; None without a key."""
    return partial(_seal, sealer, project) if sealer.has_key else None


def _seal(sealer: Sealer, project: UUID, known_id: str, origin: CallOrigin) -> dict[str, str]:
    token = sealer.seal_token(_KIND, project, origin.to_json())
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
        tokens = self._tokens
        tokens.update(
            (item_key(entry.item), output.origins.get(entry.item["id"])) for entry in output.entries
        )
        carried = self._carried(history, calls.keys() - tokens.keys())
        known = carried.keys() | tokens.keys()
        unknown = {key: item for key, item in calls.items() if key not in known}
        if unknown:
            tokens.update(await self._find(unknown))
        return carried | {
            key: origin
            for key in calls
            if (token := tokens.get(key)) is not None and (origin := self._open(token)) is not None
        }

    def _carried(self, history: Sequence[Item], keys: Collection[str]) -> dict[str, CallOrigin]:
        """`item_key` -> origin, of those of these calls whose origin is in a reasoning item before
        them."""
        carried: dict[str, CallOrigin] = {}
        by_call_id: dict[str, Any] = {}
        for item in history if keys else ():
            if item["type"] == "reasoning" and "encrypted_content" in item:
                opened = open_reasoning(item["encrypted_content"], self._sealer, self._project)
                by_call_id.update(opened.get("calls", {}))
            elif is_call(item) and item["call_id"] in by_call_id and item_key(item) in keys:
                origin = by_call_id[item["call_id"]]
                carried[item_key(item)] = CallOrigin.from_json(origin)
        return carried

    async def _find(self, calls: dict[str, Item]) -> dict[str, str | None]:
        """The origins of calls that a client sent back, last ones first: of several calls with one
        id, the last was made last."""
        keys = {
            kept_under: _call_key(self._project, item["call_id"] if is_call(item) else kept_under)
            for kept_under, item in calls.items()
        }
        rows = await fetch_when_available(
            self._pool, CALL_ORIGINS, {"keys": sorted(set(keys.values()))}
        )
        by_key: dict[str, list[StoredOrigin]] = defaultdict(list)
        for row in rows:
            by_key[row.call_key].append(row)
        return {
            kept_under: _take(by_key[keys[kept_under]], item)
            for kept_under, item in reversed(calls.items())
        }

    def _open(self, token: str) -> CallOrigin | None:
        """None if it was sealed with a removed key."""
        if token not in self._opened:
            try:
                content: dict[str, Any] = self._sealer.open_token(_KIND, self._project, token)
            except Unreadable:
                return None
            self._opened[token] = CallOrigin.from_json(content)
        return self._opened[token]


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
