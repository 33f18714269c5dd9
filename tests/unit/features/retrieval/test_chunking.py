"""Chunks of a file: no text is lost, none is larger than asked, and a second run makes the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from features.retrieval.chunking import AUTO, Chunk, Chunker, ChunkingStrategy
from tests.support.properties import examples

SMALL = ChunkingStrategy(100, 50)
_ENGLISH = "".join(
    f"Sentence number {n} says a little more than the one before. " for n in range(400)
)


def chunks_of(pieces: list[str], strategy: ChunkingStrategy = SMALL) -> list[Chunk]:
    chunker = Chunker(strategy)
    chunks = [chunk for piece in pieces for chunk in chunker.feed(piece)]
    return chunks + chunker.finish()


def cut(text: str, lengths: list[int]) -> list[str]:
    pieces = []
    for length in lengths:
        pieces.append(text[:length])
        text = text[length:]
    return [*pieces, text]


TEXTS = some.lists(
    some.sampled_from(
        [
            "word ",
            "a",
            "。",
            "漢字",
            "x" * 70,
            "end. ",
            "\n",
            "\n\n",
            " " * 20,
            "👩‍👩‍👧",
            "e\u0301",
            "é, ",
            "🇩🇪",
        ]
    ),
    max_size=400,
).map("".join)


@examples(60)
@given(text=TEXTS, lengths=some.lists(some.integers(0, 200), max_size=30))
def test_the_chunks_do_not_depend_on_the_pieces(text: str, lengths: list[int]) -> None:
    assert chunks_of(cut(text, lengths)) == chunks_of([text])


@examples(60)
@given(text=TEXTS)
def test_no_text_is_lost_and_no_chunk_is_too_large(text: str) -> None:
    chunks = chunks_of([text])
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    place = 0
    for chunk in chunks:
        assert len(chunk.text.encode()) / 4 <= chunk.tokens <= SMALL.max_tokens
        # it begins in the chunk before it, or after space
        begin = text.find(chunk.text, max(0, place - 4 * SMALL.overlap_tokens))
        assert begin >= 0
        assert not text[place:begin].strip()
        place = max(place, begin + len(chunk.text))
    assert not text[place:].strip()


def test_a_chunk_ends_with_a_sentence_and_the_next_one_repeats_its_end() -> None:
    first, second, *_ = chunks_of([_ENGLISH])
    assert first.text.endswith(".")
    assert 80 <= first.tokens <= 100
    overlap = next(
        length
        for length in range(len(first.text), 0, -1)
        if second.text.startswith(first.text[-length:])
    )
    assert 150 <= overlap <= 200


def test_auto_is_800_tokens_with_400_repeated() -> None:
    chunks = chunks_of([_ENGLISH], AUTO)
    assert len(chunks) == pytest.approx(len(_ENGLISH) / 4 / 400, abs=2)


def test_a_text_without_spaces_is_cut_between_characters() -> None:
    for character in ("x", "漢", "ก", "👩‍👩‍👧", "e\u0301"):
        chunks = chunks_of([character * 900])
        assert len(chunks) > 2
        for chunk in chunks:
            assert chunk.text == character * (len(chunk.text) // len(character))


def test_space_alone_makes_no_chunk() -> None:
    assert chunks_of([" \n\t" * 5000]) == []


@pytest.mark.parametrize("tokens", [(99, 0), (4097, 0), (100, 51), (100, -1)])
def test_sizes_that_the_api_refuses(tokens: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must be between"):
        ChunkingStrategy(*tokens)
