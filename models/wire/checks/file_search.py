"""The `file_search` tool of a request: the vector stores, and how they are searched.

Whether the project has the stores is checked when the request is stored. The filter is compiled
there too (features/retrieval/options.py): this file knows the shape of the tool.
"""

from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.api_schema import Schema, SchemaScope, reference
from models.wire.checks.basic import (
    Array,
    Check,
    Choice,
    Integer,
    Number,
    OpenObject,
    Record,
    String,
)
from models.wire.tools import FILE_SEARCH, is_own_file_search

MAX_RESULTS = 50
"""Results of one search."""
MAX_SEARCHED_STORES = 8
"""Vector stores that one tool searches."""
RANKERS = ("auto", "default-2024-11-15", "default_2024_08_21", "none")

_OPEN_OBJECT = OpenObject()
_WEIGHT = Number(0, 1000)


@dataclass(frozen=True, slots=True)
class _Filter(Check):
    """A filter on the attributes of files: an object here."""

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        return _OPEN_OBJECT(value, where)

    def schema(self, _scope: SchemaScope) -> Schema:
        return reference("VectorStoreFilter")


FILE_SEARCH_TOOL = Record(
    {
        "vector_store_ids": Array(
            String(non_empty=True, at_most=256), at_most=MAX_SEARCHED_STORES, non_empty=True
        )
    },
    {
        "filters": _Filter(),
        "max_num_results": Integer(1, MAX_RESULTS),
        "ranking_options": Record(
            {},
            {
                "ranker": Choice(*RANKERS),
                "score_threshold": Number(0, 1),
                "hybrid_search": Record({}, {"embedding_weight": _WEIGHT, "text_weight": _WEIGHT}),
            },
        ),
    },
)
"""The tool, where this server searches."""


def require_one_search(tools: list[dict[str, Any]], where: str) -> None:
    """Raises InvalidRequest for a second file search beside one of this server: nobody would know
    which of them a call means."""
    places = [index for index, tool in enumerate(tools) if tool["type"] == FILE_SEARCH]
    if len(places) > 1 and any(is_own_file_search(tools[index]) for index in places):
        raise InvalidRequest(
            f"Invalid '{where}[{places[1]}]': there is already a tool of the type "
            f"'{FILE_SEARCH}'. One tool may name up to {MAX_SEARCHED_STORES} vector stores.",
            param=f"{where}[{places[1]}]",
            code="invalid_value",
        )
