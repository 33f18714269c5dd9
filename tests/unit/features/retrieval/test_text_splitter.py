"""Texts that are too large for an upstream are embedded in parts."""

import json
import math

import pytest

from features.retrieval.embedder import LEAST_CHARACTERS, TextSplitter


def _embed(text: str) -> str:
    """Two numbers: the share of each letter."""
    return json.dumps([text.count("a") / len(text), text.count("b") / len(text)])


def _run(texts: list[str], most: int) -> tuple[list[list[float]], list[list[str]]]:
    """The embeddings of an upstream that takes texts of so many characters, and its requests."""
    splitter, requests = TextSplitter(texts), list[list[str]]()
    while (batch := splitter.next_batch()) is not None:
        requests.append(batch)
        if any(len(text) > most for text in batch):
            assert splitter.split()
        else:
            splitter.take([_embed(text) for text in batch])
    return [json.loads(vector) for vector in splitter.vectors()], requests


def test_texts_that_are_small_enough_are_one_request() -> None:
    texts = ["a" * 100, "b" * 100]
    assert _run(texts, 100) == ([[1, 0], [0, 1]], [texts])


def test_a_text_has_the_mean_of_its_parts() -> None:
    text = "a" * 300 + "b" * 300
    [vector], requests = _run([text], 150)
    assert vector == pytest.approx([math.sqrt(0.5), math.sqrt(0.5)])
    assert "".join(requests[-1]) == text[-len("".join(requests[-1])) :]


def test_the_others_are_divided_before_they_are_refused() -> None:
    vectors, requests = _run(["a" * 3200] * 64, 2000)
    assert vectors == [[1, 0]] * 64
    assert max(map(len, requests)) == 64
    assert len(requests) < 20


def test_words_stay_whole_and_spaces_are_no_part() -> None:
    _, requests = _run(["word " * 60 + " " * 300 + "a" * 10], 200)
    small = [text for batch in requests for text in batch if len(text) <= 200]
    assert all(text.strip() for text in small)
    assert {word for text in small for word in text.split()} == {"word", "a" * 10}


def test_a_short_text_is_not_divided() -> None:
    splitter = TextSplitter(["a" * (LEAST_CHARACTERS - 1)])
    splitter.next_batch()
    assert not splitter.split()
