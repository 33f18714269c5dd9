"""How a search is done: the options of a request's search, and of a tool `file_search`."""

from collections.abc import Mapping
from typing import Any

from features.retrieval.filters import compile_filter
from features.retrieval.search import SearchOptions
from models.errors import InvalidRequest
from models.wire.checks.basic import Choice, Integer, Number, require_object
from models.wire.checks.faults import unknown_parameter
from models.wire.checks.file_search import MAX_RESULTS, RANKERS

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
