"""What an action has done, as the next page says it."""

import pytest

from features.console.notice import Notice, outcome


@pytest.mark.parametrize(
    ("done", "refused", "text"),
    [
        (["done"], [], "1 response: done."),
        (["x"] * 2, ["late"], "2 responses: x. Not done with 1 response: late."),
        ([], ["a", "b", "a"], "Not done with 3 responses: a (2); b (1)."),
        (
            [],
            ["a", "a", "b", "b", "c", "c", "d"],
            "Not done with 7 responses: a (2); b (2); c (2); and other reasons (1).",
        ),
    ],
)
def test_equal_reasons_are_counted(done: list[str], refused: list[str], text: str) -> None:
    assert outcome(done, refused) == text


def test_it_travels_in_a_cookie_that_a_browser_keeps() -> None:
    notice = Notice("é" * 2000, "/responses", is_warning=True)
    cookie = notice.to_cookie()
    read = Notice.from_cookie(cookie)
    assert read is not None
    assert (read.link, read.is_warning, read.text[:3]) == ("/responses", True, "ééé")
    assert len(cookie) < 3000
    assert cookie.replace("-", "").replace("_", "").isalnum()
    for damaged in ("", "x", cookie[5:], "bm90IGpzb24"):
        assert Notice.from_cookie(damaged) is None
