"""The words in which two texts differ."""

import pytest

from features.console.compare import MAX_WORDS, Piece, word_diff


def test_words_that_differ_are_pieces_of_their_own() -> None:
    diff = word_diff("one two  three", "one 2  three four")
    assert [(each.text, each.differs) for each in diff.a] == [
        ("one ", False),
        ("two  ", True),
        ("three", False),
    ]
    assert [each.text for each in diff.b if each.differs] == ["2  ", "four"]
    assert not diff.is_cut


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("", ""),
        ("  leading\nlines\n\n", "leading lines"),
        ("word " * (MAX_WORDS + 5), "word " * MAX_WORDS + "other " * 9),
    ],
)
def test_the_pieces_of_a_side_are_its_whole_text(a: str, b: str) -> None:
    diff = word_diff(a, b)
    assert ("".join(each.text for each in diff.a), "".join(each.text for each in diff.b)) == (a, b)
    assert diff.is_cut is (len(a.split()) > MAX_WORDS)


def test_equal_texts_do_not_differ() -> None:
    assert word_diff("a b c", "a b c").a == [Piece("a b c", False)]
