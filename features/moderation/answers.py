"""Results of moderations, as upstreams send them and as a response shows them."""

from collections.abc import Iterable, Mapping
from typing import Any

Result = dict[str, Any]
"""`{"type": "moderation_result", "flagged", "categories", …}`, or `{"type": "error", …}`."""


class NoModeration(Exception):
    """The answer of an upstream is no moderation."""


def results_in(answer: Any, model: str) -> list[Result]:
    """The results in the answer to one text or image: at least one. Raises NoModeration.

    Servers of guard models leave fields out, and add words. What decides is `flagged`, or without
    it whether a category is true.
    """
    found = answer.get("results") if isinstance(answer, Mapping) else None
    if not isinstance(found, list) or not found:
        raise NoModeration
    return [_result(each, model) for each in found]


def _result(value: Any, model: str) -> Result:
    if not isinstance(value, Mapping):
        raise NoModeration
    categories = _of_type(value.get("categories"), bool)
    flagged = value.get("flagged")
    if not isinstance(flagged, bool):
        if not categories:
            raise NoModeration
        flagged = any(categories.values())
    scores = _of_type(value.get("category_scores"), float, int)
    kinds = _of_type(value.get("category_applied_input_types"), list)
    return {
        "type": "moderation_result",
        "model": model,
        "flagged": flagged,
        "categories": categories,
        "category_scores": {name: float(score) for name, score in scores.items()},
        "category_applied_input_types": {
            name: [kind for kind in each if kind in ("text", "image")]
            for name, each in kinds.items()
        },
    }


def _of_type(value: Any, *types: type) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {}
    return {str(name)[:100]: each for name, each in value.items() if type(each) in types}


def merged(results: Iterable[Result]) -> Result | None:
    """One result of several: what any of them flags, and the highest scores. None: of none."""
    whole: Result | None = None
    for result in results:
        whole = result if whole is None else _both(whole, result)
    return whole


def _both(first: Result, second: Result) -> Result:
    if "error" in (first["type"], second["type"]):
        return first if first["type"] == "error" else second
    scores, more = first["category_scores"], second["category_scores"]
    kinds, more_kinds = (each["category_applied_input_types"] for each in (first, second))
    return {
        **first,
        "flagged": first["flagged"] or second["flagged"],
        "categories": {
            name: first["categories"].get(name, False) or second["categories"].get(name, False)
            for name in first["categories"] | second["categories"]
        },
        "category_scores": {
            name: max(scores.get(name, 0.0), more.get(name, 0.0)) for name in scores | more
        },
        "category_applied_input_types": {
            name: sorted({*kinds.get(name, ()), *more_kinds.get(name, ())}, reverse=True)
            for name in kinds | more_kinds
        },
    }


def unflagged(model: str) -> Result:
    """The result where there is nothing to moderate."""
    return {
        "type": "moderation_result",
        "model": model,
        "flagged": False,
        "categories": {},
        "category_scores": {},
        "category_applied_input_types": {},
    }


def failed(code: str, message: str) -> Result:
    """The result where a moderation has failed, or was not made."""
    return {"type": "error", "code": code, "message": message}
