"""Two responses side by side: facts, parameters, input, and the words in which outputs differ."""

import asyncio
import json
import re
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import SequenceMatcher
from typing import Any
from uuid import UUID

from starlette.responses import Response

from features.console.page import Page, PageError, Visit, back_path, not_found
from features.console.templates import count
from features.operator.service import record_reveal
from models.db.database import fetch_idempotent, find_by_id
from models.db.queries import listing, operations, read
from models.db.queries.listing import ResponseDetails
from models.db.statement import Query
from models.ids import parse_response_id, response_id
from models.lifecycle import TERMINAL
from models.time_text import format_seconds, seconds_between
from models.wire.response import RETRY_OF

MAX_WORDS = 1500
"""Words of each text that are compared: texts that are made to take long then take an eighth of a
second."""
_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text. `differs`: the other text does not have it there."""

    text: str
    differs: bool


@dataclass(frozen=True, slots=True)
class WordDiff:
    """Two texts, each in pieces that follow one another."""

    a: list[Piece]
    b: list[Piece]
    is_cut: bool
    """Behind MAX_WORDS words the texts were not compared; they are the last pieces."""


def word_diff(a: str, b: str) -> WordDiff:
    """Compares two texts word by word, without the space between them. Too slow for an event
    loop."""
    words_a, words_b = _WORD.findall(a), _WORD.findall(b)
    compared_a, compared_b = words_a[:MAX_WORDS], words_b[:MAX_WORDS]
    pieces_a, pieces_b = list[Piece](), list[Piece]()
    # Frequent words alone are no match: without this rule a text of few words takes minutes.
    matcher = SequenceMatcher(
        None,
        [word.rstrip() for word in compared_a],
        [word.rstrip() for word in compared_b],
        autojunk=True,
    )
    for kind, a_from, a_to, b_from, b_to in matcher.get_opcodes():
        _add(pieces_a, compared_a[a_from:a_to], differs=kind != "equal")
        _add(pieces_b, compared_b[b_from:b_to], differs=kind != "equal")
    is_cut = len(words_a) > MAX_WORDS or len(words_b) > MAX_WORDS
    _add(pieces_a, words_a[MAX_WORDS:], differs=False)
    _add(pieces_b, words_b[MAX_WORDS:], differs=False)
    return WordDiff(pieces_a, pieces_b, is_cut)


def _add(pieces: list[Piece], words: list[str], *, differs: bool) -> None:
    if words:
        pieces.append(Piece("".join(words), differs))


_MAX_ITEMS = 100
_MAX_SIZE = 256 * 1024
"""Bytes of items that are read of each side."""
_MAX_TEXT = 64 * 1024
"""Characters of a text that are shown."""
_MAX_VALUE = 4 * 1024
"""Characters of a parameter that are shown."""
_LINKS = (RETRY_OF,)
"""Parameters that are not the client's."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A row of a table: what each of the two has."""

    name: str
    a: str
    b: str

    @property
    def differs(self) -> bool:
        """The two are not equal."""
        return self.a != self.b


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two responses."""

    id: str
    details: ResponseDetails
    ended_at: datetime | None
    """None: it has not ended"""
    parameters: dict[str, Any]
    input: str = ""
    output: str = ""
    is_cut: bool = False
    """There is more input or output than is shown."""

    @property
    def label(self) -> str:
        """Its id as a person says it."""
        return self.id[: len("resp_") + 16]


@dataclass(frozen=True, slots=True)
class Contents:
    """What is shown only to those who may read inputs and outputs."""

    parameters: list[Compared]
    """those that differ"""
    output: WordDiff
    has_equal_input: bool


async def show(visit: Visit) -> Response:
    """The page. The parameters `a` and `b` are ids; two parameters `id`, of a selection, are the
    same."""
    selected = visit.query.getlist("id")
    if selected:
        return visit.redirect("/responses/compare", **_selected(selected), back=_back(visit))
    reads = visit.may_read
    a, b = [await _read(visit, visit.query.get(name, ""), reads=reads) for name in ("a", "b")]
    names = sorted(
        name
        for name in (a.parameters.keys() | b.parameters.keys()) - set(_LINKS)
        if a.parameters.get(name) != b.parameters.get(name)
    )
    return visit.page(
        "compare.html",
        a=a,
        b=b,
        facts=_facts(a, b),
        names=names,
        contents=await _contents(a, b, names) if reads else None,
        relation=_relation(a, b),
        back=back_path(visit, visit.query, "/responses"),
    )


def _selected(ids: list[str]) -> dict[str, str]:
    """The older one first. Raises PageError (400)."""
    if len(set(ids)) != 2:
        raise PageError(400, "Select two", "Select two responses in the list to compare them.")
    return dict(zip(("a", "b"), sorted(set(ids)), strict=True))


def _back(visit: Visit) -> str | None:
    path = visit.own_path(visit.query.get("back", ""))
    return visit.url(path) if path else None


async def _read(visit: Visit, public_id: str, *, reads: bool) -> Side:
    """One of the two. With `reads` also its content, which the audit log records. Raises
    PageError (404)."""
    identifier = parse_response_id(public_id)
    details = await find_by_id(visit.pool, listing.RESPONSE_DETAILS, identifier)
    state = await find_by_id(visit.pool, operations.STATE, identifier)
    row = await find_by_id(visit.pool, read.RESPONSE, identifier)
    if identifier is None or details is None or state is None or row is None:
        raise not_found("response")
    ended_at = state.progressed_at if state.status in TERMINAL else None
    side = Side(response_id(identifier), details, ended_at, row.parameters)
    if not reads:
        return side
    await record_reveal(visit.pool, identifier, visit.actor)
    given, is_cut = await _text(visit, read.INPUT_ITEMS["asc"], identifier)
    answer, is_answer_cut = await _text(visit, read.OUTPUT_PAGE["asc"], identifier)
    return replace(side, input=given, output=answer, is_cut=is_cut or is_answer_cut)


async def _text(visit: Visit, query: Query[Any], identifier: UUID) -> tuple[str, bool]:
    """Items as one text, and whether there are more."""
    values = {"id": identifier, "after": None, "limit": _MAX_ITEMS + 1, "max_size": _MAX_SIZE}
    page = await fetch_idempotent(visit.pool, query, values)
    items = [row.payload for row in page[:_MAX_ITEMS] if row.payload is not None]
    text = "\n\n".join(map(_item_text, items))
    return text[:_MAX_TEXT], len(items) < len(page) or len(text) > _MAX_TEXT


def _item_text(item: dict[str, Any]) -> str:
    """A message as its text, behind the role unless a model wrote it; anything else as JSON,
    without ids, which always differ."""
    if item.get("type", "message") != "message":
        return _json({name: value for name, value in item.items() if not name.endswith("id")})
    role, content = item.get("role", ""), item.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [
        str(part.get("text") or part.get("refusal") or f"[{part.get('type', 'content')}]")
        for part in parts
        if isinstance(part, dict)
    ]
    return "\n".join(texts if role == "assistant" else [f"{role}:", *texts])


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


async def _contents(a: Side, b: Side, names: list[str]) -> Contents:
    parameters = [
        Compared(name, *(_value(side.parameters, name) for side in (a, b))) for name in names
    ]
    diff = await asyncio.to_thread(word_diff, a.output, b.output)
    return Contents(parameters, diff, a.input == b.input)


def _value(parameters: dict[str, Any], name: str) -> str:
    if name not in parameters:
        return "not set"
    value = parameters[name]
    text = value if isinstance(value, str) else _json(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


def _relation(a: Side, b: Side) -> str | None:
    """A sentence, if one runs the other one again."""
    if b.details.retry_of == a.id:
        return "B runs A again."
    return "A runs B again." if a.details.retry_of == b.id else None


def _facts(a: Side, b: Side) -> list[Compared]:
    """What the rows say; without what neither has."""
    columns = [_facts_of(each) for each in (a, b)]
    rows = [Compared(name, columns[0][name], columns[1][name]) for name in columns[0]]
    return [row for row in rows if row.a or row.b]


def _facts_of(side: Side) -> dict[str, str]:
    row = side.details
    usage = row.usage or {}
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens")
    reasoning = (usage.get("output_tokens_details") or {}).get("reasoning_tokens")
    return {
        "Model": row.model,
        "Upstream": row.upstream or "",
        "Project": row.project,
        "Reason": row.reason or "",
        "Until its first claim": _between(row.created_at, row.started_at),
        "Ran": _between(row.started_at, side.ended_at),
        "Input tokens": count(usage.get("input_tokens")),
        "Cached of these": count(cached or None),
        "Output tokens": count(usage.get("output_tokens")),
        "Reasoning of these": count(reasoning or None),
        "Turns": count(row.turns),
        "Tool calls": count(row.tool_calls),
        "Attempts": count(row.attempt),
        "Input items": count(row.input_items),
        "Output items": count(row.output_items),
        "Service tier": row.service_tier or "",
        "Window": row.window or "",
    }


def _between(start: datetime | None, end: datetime | None) -> str:
    if start is None or end is None:
        return ""
    return format_seconds(seconds_between(start, end))


PAGES = (Page("/responses/compare", show),)
