"""Which responses an operator wants to see or change: the conditions of a list, or the beginnings
of ids."""

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self
from uuid import UUID

from models import search_text
from models.lifecycle import OperatorStatus

DEFAULT_SINCE = timedelta(hours=24)
"""How old a response may be that a list shows, unless only open ones are requested."""
OPEN = [OperatorStatus.QUEUED, OperatorStatus.IN_PROGRESS, OperatorStatus.RETRYING]
FIRST_ID, LAST_ID = UUID(int=0), UUID(int=2**128 - 1)
"""Before and behind all ids."""
_MIN_PREFIX_LENGTH = 6


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that a response must fit; None: any. In `project` and `model` a `*` stands for any
    characters."""

    statuses: list[OperatorStatus] | None = None
    project: str | None = None
    model: str | None = None
    upstream: str | None = None
    reason: str | None = None
    since: timedelta | None = None
    metadata: tuple[str, str] | None = None
    """a key of the response's metadata and its value"""
    window: str | None = None
    missed: bool = False
    """only those that have missed their completion window"""
    continuation: str | None = None
    """the `continuation_id`"""
    text: str | None = None
    """words of its input and output, as `search_words` reads them"""
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    key: str | None = None
    """the name of an API key, or its first characters"""
    names: "Names | None" = None
    """what `project` and `key` name; None: they were not looked up, and no response has the key"""
    is_exact: bool = False
    """a `*` in `project` is a character of its name"""

    @property
    def is_empty(self) -> bool:
        """No condition is given."""
        return self == Filter()

    @property
    def searches_documents(self) -> bool:
        """It is found by the search documents, however long ago it was created."""
        wanted = (self.text, self.user, self.safety_identifier, self.prompt_cache_key, self.key)
        return any(value is not None for value in (*wanted, self.metadata))

    @property
    def is_open_only(self) -> bool:
        """Only responses that have not ended fit it."""
        return bool(self.statuses) and set(self.statuses or ()) <= set(OPEN)

    def restricted_to_open(self) -> Self:
        """The same conditions, for an action that only an open response permits."""
        return replace(self, statuses=self.statuses or OPEN)

    def values(self, max_rows: int, before: UUID = LAST_ID) -> dict[str, Any]:
        """The parameters of the statements in models/db/queries/listing.py. `before`: only
        responses with smaller ids, the next page."""
        since = self.since
        if since is None and not self.is_open_only and not self.searches_documents:
            since = DEFAULT_SINCE
        key, value = self.metadata or (None, None)
        return {
            "statuses": [status.value for status in self.statuses] if self.statuses else None,
            "project": _like(self.project, is_exact=self.is_exact),
            "model": _like(self.model),
            "upstream": self.upstream,
            "reason": self.reason,
            "metadata_key": key,
            "metadata_value": value,
            "window": self.window,
            "missed": self.missed,
            "continuation": self.continuation,
            "user": self.user,
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
            "keys": None if self.key is None else list(self.names.keys if self.names else ()),
            "since": since,
            "before": before,
            "down_to": FIRST_ID,
            "max_rows": max_rows,
        }

    def document_values(self) -> dict[str, Any]:
        """The further parameters of `listing.SEARCH_RESPONSES` but `times`. The marks are what all
        documents must have; each of them may be one of several."""
        names = self.names or Names()
        keys = [f"{search_text.KEY}{key.hex}" for key in names.keys]
        pair = None if self.metadata is None else "=".join(self.metadata)
        marks = [
            [f"{search_text.PROJECT}{names.project.hex}"] if names.project is not None else [],
            keys if self.key is not None else [],
            _mark(search_text.USER, self.user),
            _mark(search_text.SAFETY_IDENTIFIER, self.safety_identifier),
            _mark(search_text.CACHE_KEY, self.prompt_cache_key),
            _mark(search_text.METADATA, pair),
        ]
        return {
            "marks": " & ".join(f"({search_text.marks_query(each)})" for each in marks if each),
            "words": None if self.text is None else search_text.search_words(self.text),
        }


@dataclass(frozen=True, slots=True)
class Names:
    """What names of a filter stand for."""

    project: UUID | None = None
    """None: none was given, or one with `*`"""
    keys: tuple[UUID, ...] = ()


def _like(pattern: str | None, *, is_exact: bool = False) -> str | None:
    """A pattern of SQL for a text with `*`."""
    if pattern is None:
        return None
    escaped = re.sub(r"([\\%_])", r"\\\1", pattern)
    return escaped if is_exact else escaped.replace("*", "%")


def _mark(kind: str, value: str | None) -> list[str]:
    return [] if value is None else [f"{kind}{search_text.digest(value)}"]


def id_prefix(name: str) -> str | None:
    """The hexadecimal digits of the beginning of an id; None if `name` is not one."""
    digits = name.replace("-", "").lower()
    return digits if re.fullmatch(rf"[0-9a-f]{{{_MIN_PREFIX_LENGTH},32}}", digits) else None


def id_range(name: str) -> dict[str, UUID] | None:
    """The parameters of `listing.RESPONSES_BY_PREFIX` for a response's id or the beginning of one;
    None if `name` is neither."""
    digits = id_prefix(name.removeprefix("resp_"))
    if digits is None:
        return None
    return {"first": UUID(digits.ljust(32, "0")), "last": UUID(digits.ljust(32, "f"))}
