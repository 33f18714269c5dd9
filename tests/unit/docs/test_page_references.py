"""Every file, test and page that the documentation and the code name exists.

A reader who follows a reference must not end at nothing.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SOURCES = sorted(
    path
    for folder in ("web", "worker", "models", "features", "cli", "migrations", "bench", "tests")
    for path in ROOT.glob(f"{folder}/**/*.py")
)

_PATH = re.compile(
    r"(?<![\w/.-])((?:web|worker|models|features|cli|migrations|bench|tests|docs|unit|contract|integration|chaos|clients)"
    r"/[\w/.-]*\w\.(?:py|md|txt|toml|yml))(?:::(\w+))?"
)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
_LINK_TO_HEADING = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_OUTSIDE = re.compile(
    r"\b(?:design|contract|house|findings|engine|embedded)(?:\.md)? ?§|\.\./shared/\w+\.md"
)


def _resolve(name: str) -> Path | None:
    """The file of this name, from the root or from tests/."""
    for base in (ROOT, ROOT / "tests"):
        if (base / name).is_file():
            return base / name
    return None


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of this page."""
    headings = _HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_only_what_exists(page: Path) -> None:
    text = page.read_text()
    missing = [link for link in _LINK.findall(text) if not (page.parent / link).exists()]
    for name, anchor in _LINK_TO_HEADING.findall(text):
        target = page.parent / name if name else page
        if target.exists() and anchor not in _anchors(target):
            missing.append(f"{name}#{anchor}")
    if page.name != "CHANGELOG.md":  # it tells of names as they were
        for name, test in _PATH.findall(text):
            file = _resolve(name)
            if file is None:
                missing.append(name)
            elif test and f"def {test}" not in file.read_text():
                missing.append(f"{name}::{test}")
    assert not missing


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert not {name for name in pages if f"]({name})" not in index}


def test_the_code_names_only_files_that_exist() -> None:
    missing = {
        f"{source.relative_to(ROOT)}: {name}"
        for source in SOURCES
        for name, _ in _PATH.findall(source.read_text())
        if _resolve(name) is None
    }
    assert not missing


def test_nothing_cites_a_page_outside_the_repository() -> None:
    citing = [
        f"{file.relative_to(ROOT)}: {match.group()}"
        for file in [*PAGES, *SOURCES, ROOT / "pyproject.toml", ROOT / "docker-compose.yml"]
        if file != Path(__file__)
        for match in _OUTSIDE.finditer(file.read_text())
    ]
    assert not citing
