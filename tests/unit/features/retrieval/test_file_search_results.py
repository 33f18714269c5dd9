"""What a file search gives a response: how much of it, and when it is tried again."""

from typing import Any, cast

import psycopg
import pytest

from features.retrieval.file_search import ProjectFiles, _limited
from features.retrieval.options import SearchOptions
from features.retrieval.search import (
    ChunkSearch,
    SearchResult,
    SearchTooSlow,
    _run_all,
)
from models.db import database
from models.ids import file_id, new_uuid
from models.project_policies import ProjectPolicies
from models.projects.policy import DEFAULT_POLICY, ProjectPolicy
from worker.tools.provider import ToolCallError

FILE = new_uuid()


def result(text: str, score: float = 0.5) -> SearchResult:
    return SearchResult(FILE, "a.md", {}, text, score)


def test_the_best_results_are_kept_up_to_a_size_and_each_once() -> None:
    found = [result("é" * 4, 0.9), result("é" * 4, 0.8), result("abc", 0.7), result("d" * 9, 0.6)]
    for size, texts in (
        (100, ["éééé", "abc", "d" * 9]),
        (13, ["éééé", "abc", "dd"]),
        (11, ["éééé", "abc"]),
        (3, ["é"]),
        (1, []),
    ):
        assert [each["text"] for each in _limited(found, size)] == texts
    assert _limited(found, 8) == [
        {
            "file_id": file_id(FILE),
            "filename": "a.md",
            "score": 0.9,
            "attributes": {},
            "text": "éééé",
        }
    ]


class _Searches:
    """Fails in parallel statements, as a search does, until there are no more errors."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def policy(self, _: Any) -> ProjectPolicy:
        return DEFAULT_POLICY

    async def stores(self, *_: Any) -> list[Any]:
        async def fail() -> None:
            if self.errors:
                raise self.errors.pop(0)

        await _run_all([fail(), fail()])
        return [type("Store", (), {"is_expired": False})]

    async def search(self, *_: Any) -> list[SearchResult]:
        return [result("found")]


async def test_a_search_is_tried_again_when_postgres_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database, "RETRY_DELAY", 0)
    away = [psycopg.OperationalError("away") for _ in range(6)]
    for errors, expected in ((away, "found"), ([SearchTooSlow("It took too long.")], None)):
        double: Any = _Searches(*errors)
        files = ProjectFiles(
            cast("ChunkSearch", double), cast("ProjectPolicies", double), new_uuid()
        )
        if expected is None:
            with pytest.raises(ToolCallError, match="It took too long"):
                await files.find([], ["x"], SearchOptions())
        else:
            assert (await files.find([], ["x"], SearchOptions()))[0].text == expected
