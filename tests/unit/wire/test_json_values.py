"""Values of JSON are counted in its bytes, wherever they are divided."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import RequestTooLarge
from models.wire.json_input import BodyLimits, ValueCounter, decode_request
from tests.support.properties import examples

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('",[{\\ax\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('",[{\\'), inner),
    max_leaves=20,
)


def _count(*pieces: bytes) -> int:
    counter = ValueCounter()
    for piece in pieces:
        counter.feed(piece)
    return counter.count


def _marks(value: object) -> int:
    """The commas and brackets of a value without its strings."""
    if isinstance(value, list | dict):
        inner = value if isinstance(value, list) else list(value.values())
        return 1 + max(0, len(inner) - 1) + sum(map(_marks, inner))
    return 0


@examples(100)
@given(value=JSON_VALUES, size=st.integers(1, 8))
def test_values_in_pieces_are_counted_without_those_in_strings(value: object, size: int) -> None:
    encoded = json.dumps(value).encode()
    pieces = [encoded[start : start + size] for start in range(0, len(encoded), size)]
    assert _count(*pieces) == _marks(value)


def test_lists_and_objects_count_as_four_in_the_weight() -> None:
    counter = ValueCounter()
    for piece in (b'{"a": [1, 2, "', b'[{"], "b": {', b'"c": 1}}'):
        counter.feed(piece)
    assert (counter.count, counter.containers, counter.weight) == (6, 3, 15)


def test_a_quote_outside_of_json_hides_no_values() -> None:
    """A comment of an event stream may have one."""
    assert _count(b': "\n\ndata: [1, 2]\n') == _count(b"[1, 2]")


def test_text_may_have_more_commas_than_a_body_may_have_values() -> None:
    limits = BodyLimits(4_000_000, 4_000_000, 1000)
    assert decode_request(json.dumps({"input": "a, " * 50_000}).encode(), limits)
    with pytest.raises(RequestTooLarge):
        decode_request(json.dumps({"input": ["a, "] * 50_000}).encode(), limits)
