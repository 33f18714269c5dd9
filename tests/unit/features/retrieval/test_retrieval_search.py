"""How two lists of chunks become one, and filters become jsonpath."""

from uuid import UUID

import pytest

from features.retrieval.options import compile_filter
from features.retrieval.search import fuse
from models.errors import InvalidRequest

A, B, C = ((UUID(int=number), 0) for number in range(3))


def test_the_first_of_both_lists_has_the_best_score_and_no_score_is_above_1() -> None:
    scores = fuse([(1.0, [A, B]), (1.0, [A, C])])
    assert scores[A] == 1.0
    assert 0 < scores[B] == scores[C] < 0.5


def test_a_weight_of_0_leaves_a_list_out() -> None:
    scores = fuse([(2.0, [A, B]), (0.0, [C])])
    assert list(scores) == [A, B]
    assert scores[A] == 1.0


def test_a_filter_becomes_one_predicate() -> None:
    one = {"type": "eq", "key": 'a"b', "value": "x"}
    both = {"type": "and", "filters": [one, {"type": "nin", "key": "c", "value": [1, True]}]}
    assert compile_filter(both) == (
        '(exists($."a\\"b" ? (@ == "x")) && (!(exists($."c" ? (@ == (1) || @ == true)))))'
    )


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "filters"),
        ({"type": "eq", "value": 1}, "filters.key"),
        ({"type": "eq", "key": "a"}, "filters.value"),
        ({"type": "or", "filters": []}, "filters.filters"),
        ({"type": "or", "filters": [{"type": "no"}]}, "filters.filters[0].type"),
        ({"type": "gt", "key": "a", "value": float("inf")}, "filters.value"),
        ({"type": "in", "key": "a", "value": [1] * 101}, "filters.value"),
    ],
)
def test_a_bad_filter_names_its_place(given: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compile_filter(given)
    assert refused.value.param == param
