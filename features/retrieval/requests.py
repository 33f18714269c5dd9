"""What clients may ask of vector stores: the bodies of requests, checked."""

import math
from dataclasses import dataclass, field
from typing import Any

from features.retrieval.options import parse_search_options
from features.retrieval.search import SearchOptions
from models.errors import InvalidRequest
from models.wire.checks.basic import Array, Boolean, Choice, Integer, String
from models.wire.checks.faults import (
    missing,
    not_an_object,
    shorten,
    too_long,
    unknown_parameter,
    wrong_type,
)
from models.wire.checks.parameters import METADATA

AUTO_TOKENS, AUTO_OVERLAP = 800, 400
"""The chunks of the strategy `auto`."""
MIN_TOKENS, MAX_TOKENS = 100, 4096
MAX_EXPIRY_DAYS = 365
MAX_ATTRIBUTES, MAX_KEY, MAX_VALUE = 16, 64, 512
MAX_BATCH = 2000
"""Files of one batch."""
MAX_QUERIES = 16
MAX_QUERY = 4096
"""Characters of a query."""

_NAME = String(at_most=256)
_TEXT = String()
_DESCRIPTION = String(at_most=4096)
_DAYS = Integer(1, MAX_EXPIRY_DAYS)
_TOKENS = Integer(MIN_TOKENS, MAX_TOKENS)
_OVERLAP = Integer(0, MAX_TOKENS // 2)
_VALUE = String(at_most=MAX_VALUE)
_FILE_IDS = Array(_TEXT, at_most=MAX_BATCH)
_QUERY = String(non_empty=True, at_most=MAX_QUERY)
_QUERIES = Array(_QUERY, at_most=MAX_QUERIES, non_empty=True)
_BOOLEAN = Boolean()

Attributes = dict[str, str | float | bool]


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a file is cut into chunks: tokens of each, and how many it shares with the next one."""

    max_tokens: int = AUTO_TOKENS
    overlap: int = AUTO_OVERLAP


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is added to a store."""

    file_id: str
    attributes: Attributes = field(default_factory=dict)
    chunking: Chunking = field(default_factory=Chunking)


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
    fields = _known(
        body,
        *("name", "description", "metadata", "expires_after", "file_ids", "chunking_strategy"),
    )
    description, metadata = fields.get("description"), fields.get("metadata")
    chunking = _chunking(fields.get("chunking_strategy"), "chunking_strategy")
    ids = fields.get("file_ids")
    return NewStore(
        name=_storable(_NAME(fields.get("name") or "", "name")),
        description=None
        if description is None
        else _storable(_DESCRIPTION(description, "description")),
        metadata={} if metadata is None else METADATA(metadata, "metadata"),
        days=_days(fields.get("expires_after")),
        files=[]
        if ids is None
        else [NewFile(each, {}, chunking) for each in _FILE_IDS(ids, "file_ids")],
    )


def parse_store_change(body: Any) -> StoreChange:
    """The body of an update. Raises InvalidRequest."""
    fields = _known(body, "name", "metadata", "expires_after")
    name, metadata = fields.get("name"), fields.get("metadata")
    return StoreChange(
        name=None if name is None else _storable(_NAME(name, "name")),
        # A null clears them, as at OpenAI.
        metadata=({} if "metadata" in fields else None)
        if metadata is None
        else METADATA(metadata, "metadata"),
        set_expiry="expires_after" in fields,
        days=_days(fields.get("expires_after")),
    )


def parse_new_file(body: Any) -> NewFile:
    """The body that adds one file. Raises InvalidRequest."""
    return _new_file(_known(body, "file_id", "attributes", "chunking_strategy"), "")


def parse_new_files(body: Any) -> list[NewFile]:
    """The body of a batch: each file once. Raises InvalidRequest."""
    fields = _known(body, "file_ids", "files", "attributes", "chunking_strategy")
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
    fields = _known(body, "attributes")
    if "attributes" not in fields:
        raise missing("attributes")
    return parse_attributes(fields["attributes"], "attributes")


def parse_search(body: Any) -> SearchRequest:
    """The body of a search. Raises InvalidRequest."""
    fields = _known(body, "query", "filters", "max_num_results", "ranking_options", "rewrite_query")
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
        if name not in ("file_id", "attributes", "chunking_strategy"):
            raise unknown_parameter(f"{where}{name}")
    if fields.get("file_id") is None:
        raise missing(f"{where}file_id")
    return NewFile(
        _TEXT(fields["file_id"], f"{where}file_id"),
        parse_attributes(fields.get("attributes"), f"{where}attributes"),
        _chunking(fields.get("chunking_strategy"), f"{where}chunking_strategy"),
    )


def _chunking(value: Any, where: str) -> Chunking:
    if value is None:
        return Chunking()
    fields = _object(value, where)
    if fields.get("type") is None:
        raise missing(f"{where}.type")
    if Choice("auto", "static")(fields["type"], f"{where}.type") == "auto":
        return Chunking()
    place = f"{where}.static"
    static = _object(fields.get("static"), place)
    for name in ("max_chunk_size_tokens", "chunk_overlap_tokens"):
        if static.get(name) is None:
            raise missing(f"{place}.{name}")
    tokens = _TOKENS(static["max_chunk_size_tokens"], f"{place}.max_chunk_size_tokens")
    overlap = _OVERLAP(static["chunk_overlap_tokens"], f"{place}.chunk_overlap_tokens")
    if overlap * 2 > tokens:
        raise InvalidRequest(
            f"Invalid '{place}.chunk_overlap_tokens': it must not exceed half of "
            "'max_chunk_size_tokens'.",
            param=f"{place}.chunk_overlap_tokens",
            code="invalid_value",
        )
    return Chunking(tokens, overlap)


def _days(value: Any) -> int | None:
    if value is None:
        return None
    fields = _object(value, "expires_after")
    for name in ("anchor", "days"):
        if fields.get(name) is None:
            raise missing(f"expires_after.{name}")
    Choice("last_active_at")(fields["anchor"], "expires_after.anchor")
    return _DAYS(fields["days"], "expires_after.days")


def _known(body: Any, *names: str) -> dict[str, Any]:
    if type(body) is not dict:
        raise not_an_object(body)
    for name, value in body.items():
        if name not in names and value is not None:
            raise unknown_parameter(name)
    return body


def _object(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        raise missing(where)
    if type(value) is not dict:
        raise wrong_type(where, "an object", value)
    return value


def _storable(text: str) -> str:
    """PostgreSQL's texts have no U+0000."""
    return text.replace("\0", "\ufffd")
