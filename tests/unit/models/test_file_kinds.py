"""The media types with which models get files."""

import pytest

from models.files.kinds import PDF, TEXT, UNKNOWN, sent_type


@pytest.mark.parametrize(
    ("filename", "kind", "sent"),
    [
        ("a.png", "image/png", "image/png"),
        ("a.txt", PDF, PDF),
        ("notes", TEXT, TEXT),
        ("a.md", TEXT, "text/markdown"),
        ("a.csv", TEXT, "text/csv"),
        ("a.json", TEXT, "application/json"),
        ("a.zip", TEXT, TEXT),
        ("a.zip", None, "application/zip"),
        ("a.pdf", None, UNKNOWN),
        ("a.jpe", None, UNKNOWN),
        ("a", None, UNKNOWN),
    ],
)
def test_the_type_is_that_of_the_bytes_and_else_that_of_the_name(
    filename: str, kind: str | None, sent: str
) -> None:
    assert sent_type(filename, kind) == sent
