"""What clients may ask of vector stores: the bodies of requests, checked."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from features.retrieval.chunking import AUTO, LEAST_TOKENS, MOST_TOKENS, ChunkingStrategy
from features.retrieval.options import SearchOptions, parse_search_options
from models.errors import InvalidRequest
from models.wire.checks import basic
from models.wire.checks.faults import (
    missing,
    shorten,
    too_long,
    unknown_parameter,
    wrong_type,
)
from models.wire.checks.parameters import METADATA

MAX_EXPIRY_DAYS = 365
MAX_ATTRIBUTES, MAX_KEY, MAX_VALUE = 16, 64, 512
MAX_BATCH = 2000
"""Files of one batch."""
MAX_QUERIES = 16
MAX_QUERY = 4096
"""Characters of a query."""

_FILE_FIELDS = ("file_id", "attributes", "chunking_strategy")
_TEXT = basic.String()
_STATIC = {
    "max_chunk_size_tokens": basic.Integer(LEAST_TOKENS, MOST_TOKENS),
    "chunk_overlap_tokens": basic.Integer(0, MOST_TOKENS // 2),
}
_CHUNKING = basic.Tagged(
    {"auto": basic.Record({}), "static": basic.Record({"static": basic.Record(_STATIC)})}
)
_EXPIRY = basic.Record(
    {"anchor": basic.Choice("last_active_at"), "days": basic.Integer(1, MAX_EXPIRY_DAYS)}
)
_VALUE = basic.String(at_most=MAX_VALUE)
_FILE_IDS = basic.Array(_TEXT, at_most=MAX_BATCH)
_QUERY = basic.String(non_empty=True, at_most=MAX_QUERY)
_QUERIES = basic.Array(_QUERY, at_most=MAX_QUERIES, non_empty=True)
_BOOLEAN = basic.Boolean()
_STORE: Mapping[str, basic.Check] = {
    "name": basic.String(at_most=256),
    "metadata": METADATA,
    "expires_after": _EXPIRY,
}
_NEW_STORE: Mapping[str, basic.Check] = {
    **_STORE,
    "description": basic.String(at_most=4096),
    "file_ids": _FILE_IDS,
    "chunking_strategy": _CHUNKING,
}
_NO_EXPIRY = {"days": None}

Attributes = dict[str, str | float | bool]


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is added to a store."""

    file_id: str
    attributes: Attributes = field(default_factory=dict)
    chunking: ChunkingStrategy = AUTO


@dataclass(frozen=True, slots=True)
class NewStore:
    """A store that is made."""

    name: str
    description: str | None
    metadata: dict[str, str]
    days: int | None
    files: list[NewFile]


@dataclass(frozen=True, slots=True)
class StoreChange:
    """A change of a store. None: unchanged."""

    name: str | None
    metadata: dict[str, str] | None
    set_expiry: bool
    days: int | None


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A search."""

    queries: list[str]
    rewrite: bool
    """the queries may be rewritten"""
    options: SearchOptions


def parse_new_store(body: Any) -> NewStore:
    """The body of a create. Raises InvalidRequest."""
    fields = basic.checked_fields(body, _NEW_STORE)
    chunking = _strategy(fields.get("chunking_strategy"), "chunking_strategy")
    description = fields.get("description")
    return NewStore(
        name=_storable(fields.get("name", "")),
        description=None if description is None else _storable(description),
        metadata=fields.get("metadata", {}),
        days=fields.get("expires_after", _NO_EXPIRY)["days"],
        files=[NewFile(each, {}, chunking) for each in fields.get("file_ids", ())],
    )


def parse_store_change(body: Any) -> StoreChange:
    """The body of an update. Raises InvalidRequest."""
    fields = basic.checked_fields(body, _STORE)
    name = fields.get("name")
    return StoreChange(
        name=None if name is None else _storable(name),
        # A null clears them, as at OpenAI.
        metadata=fields.get("metadata", {} if "metadata" in body else None),
        set_expiry="expires_after" in body,
        days=fields.get("expires_after", _NO_EXPIRY)["days"],
    )


def parse_new_file(body: Any) -> NewFile:
    """The body that adds one file. Raises InvalidRequest."""
    return _new_file(basic.known_fields(body, _FILE_FIELDS), "")


def parse_new_files(body: Any) -> list[NewFile]:
    """The body of a batch: each file once. Raises InvalidRequest."""
    fields = basic.known_fields(body, ("file_ids", "files", "attributes", "chunking_strategy"))
    ids, given = fields.get("file_ids"), fields.get("files")
    if (ids is None) == (given is None):
        raise InvalidRequest(
            "Exactly one of 'file_ids' and 'files' is required.",
            param="file_ids",
            code="missing_required_parameter" if ids is None else "invalid_value",
        )
    if given is not None:
        if type(given) is not list:
            raise wrong_type("files", "an array", given)
        if len(given) > MAX_BATCH:
            raise too_long("files", "array", MAX_BATCH, len(given))
        new = [
            _new_file(_object(each, f"files[{at}]"), f"files[{at}].")
            for at, each in enumerate(given)
        ]
    else:
        attributes = parse_attributes(fields.get("attributes"), "attributes")
        chunking = _chunking(fields.get("chunking_strategy"), "chunking_strategy")
        new = [NewFile(each, attributes, chunking) for each in _FILE_IDS(ids, "file_ids")]
    if not new:
        raise InvalidRequest("A batch has at least one file.", param="file_ids", code="empty_array")
    return list({each.file_id: each for each in new}.values())


def parse_attribute_change(body: Any) -> Attributes:
    """The body that replaces the attributes of a file. Raises InvalidRequest."""
    fields = basic.known_fields(body, ("attributes",))
    if "attributes" not in fields:
        raise missing("attributes")
    return parse_attributes(fields["attributes"], "attributes")


def parse_search(body: Any) -> SearchRequest:
    """The body of a search. Raises InvalidRequest."""
    fields = basic.known_fields(
        body, ("query", "filters", "max_num_results", "ranking_options", "rewrite_query")
    )
    query = fields.get("query")
    if query is None:
        raise missing("query")
    queries = _QUERIES(query, "query") if type(query) is list else [_QUERY(query, "query")]
    rewrite = fields.get("rewrite_query")
    return SearchRequest(
        queries,
        rewrite is not None and _BOOLEAN(rewrite, "rewrite_query"),
        parse_search_options(fields),
    )


def parse_attributes(value: Any, where: str) -> Attributes:
    """Attributes of a file: up to 16 texts, numbers and booleans. Null: none. Raises
    InvalidRequest."""
    if value is None:
        return {}
    pairs = {key: each for key, each in _object(value, where).items() if each is not None}
    if len(pairs) > MAX_ATTRIBUTES:
        raise InvalidRequest(
            f"Invalid '{where}': too many properties. Expected an object with at most "
            f"{MAX_ATTRIBUTES} properties, but got an object with {len(pairs)} properties instead.",
            param=where,
            code="object_above_max_properties",
        )
    return {_storable(key): _attribute(key, each, where) for key, each in pairs.items()}


def _attribute(key: str, value: Any, where: str) -> str | float | bool:
    place = f"{where}.{shorten(key)}"
    if len(key) > MAX_KEY:
        raise too_long(place, "string", MAX_KEY, len(key))
    if type(value) is str:
        return _storable(_VALUE(value, place))
    if type(value) is bool or type(value) is int:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    raise wrong_type(place, "a string, a number or a boolean", value)


def _new_file(fields: dict[str, Any], where: str) -> NewFile:
    for name in fields:
        if name not in _FILE_FIELDS:
            raise unknown_parameter(f"{where}{name}")
    if fields.get("file_id") is None:
        raise missing(f"{where}file_id")
    return NewFile(
        _TEXT(fields["file_id"], f"{where}file_id"),
        parse_attributes(fields.get("attributes"), f"{where}attributes"),
        _chunking(fields.get("chunking_strategy"), f"{where}chunking_strategy"),
    )


def _chunking(value: Any, where: str) -> ChunkingStrategy:
    return _strategy(None if value is None else _CHUNKING(value, where), where)


def _strategy(given: dict[str, Any] | None, where: str) -> ChunkingStrategy:
    """`given`: checked. Raises InvalidRequest."""
    if given is None or given["type"] == "auto":
        return AUTO
    static = given["static"]
    tokens, overlap = static["max_chunk_size_tokens"], static["chunk_overlap_tokens"]
    if overlap * 2 > tokens:
        place = f"{where}.static.chunk_overlap_tokens"
        raise InvalidRequest(
            f"Invalid '{place}': it must not exceed half of 'max_chunk_size_tokens'.",
            param=place,
            code="invalid_value",
        )
    return ChunkingStrategy(tokens, overlap)


def _object(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        raise missing(where)
    if type(value) is not dict:
        raise wrong_type(where, "an object", value)
    return value


def _storable(text: str) -> str:
    """PostgreSQL's texts have no U+0000."""
    return text.replace("\0", "\ufffd")
