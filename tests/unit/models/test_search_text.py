"""Search documents: how words are read, and which marks cover a range of minutes."""

import itertools

import pytest

from models.ids import new_uuid
from models.search_text import Minutes, minute_of, search_words

DAY = 24 * 60


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("invoice 4711", "invoice 4711"),
        ("INV-4711, please", '"INV 4711" please'),
        ('"due today" or -paid', '"due today" or -paid'),
        ('"unfinished phrase', '"unfinished phrase"'),
        ("-a.b", '-"a b"'),
        ("§p0123 'x' & !", "p0123 x"),
        ("größe 4711€", "größe 4711€"),
        (" -- § \"''\" ", None),
    ],
)
def test_words_of_a_search(text: str, words: str | None) -> None:
    assert search_words(text) == words


@pytest.mark.parametrize(
    ("begin", "end", "marks"),
    [
        (100, 103, ["§m100", "§m101", "§m102"]),
        (59, 121, ["§m59", "§h1", "§m120"]),
        (DAY - 60, 2 * DAY + 61, ["§h23", "§d1", "§h48", "§m2940"]),
        (7, 7, []),
    ],
)
def test_the_fewest_marks_cover_a_range(begin: int, end: int, marks: list[str]) -> None:
    assert Minutes(begin, end).marks() == marks


def test_a_search_backwards_leaves_no_minute_out_and_has_few_marks() -> None:
    oldest = 1_000_000
    ranges = [Minutes(oldest + 400 * DAY + 17, oldest + 400 * DAY + 33)]
    while ranges[-1].begin > oldest:
        ranges.append(ranges[-1].before(oldest))
    assert ranges[-1].begin == oldest
    for later, earlier in itertools.pairwise(ranges):
        assert earlier.end == later.begin
        assert 0 < len(earlier.marks()) < 200
    assert len(ranges) < 25


def test_the_first_id_of_a_range_is_made_in_its_first_minute() -> None:
    response = new_uuid()
    minute = minute_of(response)
    assert minute_of(Minutes(minute, minute + 1).first_id) == minute
    assert Minutes(minute, minute + 1).first_id <= response < Minutes(minute + 1, 0).first_id
