"""How a search is done: the options of a request's search, and of a tool `file_search`.

Filters on the attributes of files are in the form of OpenAI here, and a jsonpath of PostgreSQL
behind it. A comparison holds only between values of one type: the number 1 is not the text "1". An
attribute that is absent, or has another type, is not equal to any value: `ne` and `nin` hold for
it, and no other comparison does. Text is compared by its code points.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import InvalidRequest
from models.wire.checks.basic import Choice, Integer, Number, String, require_object
from models.wire.checks.faults import missing, too_long, unknown_parameter, wrong_type
from models.wire.checks.server_tools import MAX_RESULTS, RANKERS

MAX_DEPTH = 8
"""Levels of `and` and `or`."""
MAX_COMPARISONS = 100
MAX_VALUES = 100
"""Values of one `in` or `nin`."""
_KEY = String(non_empty=True, at_most=64)
_VALUE = String(at_most=512)
_COMPOUND = ("and", "or")
_OPERATORS = {"eq": "==", "ne": "==", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_LISTS = ("in", "nin")
_NEGATED = ("ne", "nin")
_TYPE = Choice(*_OPERATORS, *_LISTS, *_COMPOUND)


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How a search is done."""

    max_results: int = 10
    """up to 50 (models/wire/checks/server_tools.py)"""
    filter: str | None = None
    """a jsonpath on the attributes of files (features/retrieval/options.py); None: all files"""
    score_threshold: float = 0.0
    """chunks with a lower score are left out"""
    embedding_weight: float = 1.0
    text_weight: float = 1.0
    by_embedding_alone: bool = False
    """no fusion: the score is the cosine similarity. A store without embeddings is searched by
    words all the same"""


def compile_filter(value: Any, where: str = "filters") -> str:
    """A filter of a request as a jsonpath predicate. Raises InvalidRequest."""
    return _Compiler().compile(value, where, 0)


class _Compiler:
    """Compiles one filter, and counts its parts."""

    def __init__(self) -> None:
        self._comparisons = 0

    def compile(self, value: Any, where: str, depth: int) -> str:
        if type(value) is not dict:
            raise wrong_type(where, "an object", value)
        if value.get("type") is None:
            raise missing(f"{where}.type")
        kind = _TYPE(value["type"], f"{where}.type")
        if kind in _COMPOUND:
            return self._compound(kind, value, where, depth)
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise _too_large(where, f"it has more than {MAX_COMPARISONS} comparisons")
        return _comparison(kind, value, where)

    def _compound(self, kind: str, value: Mapping[str, Any], where: str, depth: int) -> str:
        if depth == MAX_DEPTH:
            raise _too_large(where, f"it has more than {MAX_DEPTH} levels")
        place = f"{where}.filters"
        filters = value.get("filters")
        if filters is None:
            raise missing(place)
        if type(filters) is not list:
            raise wrong_type(place, "an array", filters)
        if not filters:
            raise _too_large(place, "it is empty")
        if len(filters) > MAX_COMPARISONS:
            raise too_long(place, "array", MAX_COMPARISONS, len(filters))
        parts = [self.compile(each, f"{place}[{at}]", depth + 1) for at, each in enumerate(filters)]
        return f"({(' && ' if kind == 'and' else ' || ').join(parts)})"


def _comparison(kind: str, value: Mapping[str, Any], where: str) -> str:
    if value.get("key") is None:
        raise missing(f"{where}.key")
    key = _literal(_KEY(value["key"], f"{where}.key"))
    given, place = value.get("value"), f"{where}.value"
    if given is None:
        raise missing(place)
    if kind in _LISTS:
        if type(given) is not list:
            raise wrong_type(place, "an array", given)
        if len(given) > MAX_VALUES:
            raise too_long(place, "array", MAX_VALUES, len(given))
        literals = [_scalar(each, f"{place}[{at}]") for at, each in enumerate(given)]
        condition = " || ".join(f"@ == {each}" for each in literals) or "1 == 0"
    else:
        condition = f"@ {_OPERATORS[kind]} {_scalar(given, place)}"
    # `exists` is true or false, where a bare comparison of two types would be unknown.
    predicate = f"exists($.{key} ? ({condition}))"
    return f"(!({predicate}))" if kind in _NEGATED else predicate


def _scalar(value: Any, where: str) -> str:
    if type(value) is str:
        return _literal(_VALUE(value, where))
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        # jsonpath has no negative literals, and a sign before one is an operation.
        return f"({value!r})"
    raise wrong_type(where, "a string, a number or a boolean", value)


def _literal(text: str) -> str:
    """A text as jsonpath writes it: as JSON does. Neither has U+0000."""
    return json.dumps(text.replace("\0", "\ufffd"), ensure_ascii=False)


def _too_large(where: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{where}': {why}.", param=where, code="invalid_value")


_RESULTS = Integer(1, MAX_RESULTS)
_SCORE = Number(0, 1)
_WEIGHT = Number(0, 1000)
_RANKER = Choice(*RANKERS)


def parse_search_options(
    fields: Mapping[str, Any], where: str = "", *, results: int = 10
) -> SearchOptions:
    """`filters`, `max_num_results` and `ranking_options` of a search or of a tool `file_search`.
    `where`: in front of their names in errors. `results`: how many there are at most if the fields
    do not say it. Raises InvalidRequest."""
    filters, count = fields.get("filters"), fields.get("max_num_results")
    place = f"{where}ranking_options"
    given = fields.get("ranking_options")
    ranking = {} if given is None else require_object(given, place)
    for name in ranking:
        if name not in ("ranker", "score_threshold", "hybrid_search"):
            raise unknown_parameter(f"{place}.{name}")
    ranker, threshold = ranking.get("ranker"), ranking.get("score_threshold")
    if ranker is not None:
        _RANKER(ranker, f"{place}.ranker")
    weights = _weights(ranking.get("hybrid_search"), f"{place}.hybrid_search")
    return SearchOptions(
        max_results=results if count is None else _RESULTS(count, f"{where}max_num_results"),
        filter=None if filters is None else compile_filter(filters, f"{where}filters"),
        score_threshold=0.0 if threshold is None else _SCORE(threshold, f"{place}.score_threshold"),
        embedding_weight=weights[0],
        text_weight=weights[1],
        by_embedding_alone=ranker == "none",
    )


def _weights(value: Any, where: str) -> tuple[float, float]:
    if value is None:
        return 1.0, 1.0
    fields = require_object(value, where)
    for name in fields:
        if name not in ("embedding_weight", "text_weight"):
            raise unknown_parameter(f"{where}.{name}")
    found: list[float] = []
    for name in ("embedding_weight", "text_weight"):
        weight = fields.get(name)
        found.append(1.0 if weight is None else _WEIGHT(weight, f"{where}.{name}"))
    if not any(found):
        raise InvalidRequest(
            f"Invalid '{where}': one of the weights must be above 0.",
            param=where,
            code="invalid_value",
        )
    return found[0], found[1]
