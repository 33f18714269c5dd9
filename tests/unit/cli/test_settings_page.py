"""docs/settings.md: it is current, and it explains every setting."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from cli.configuration.settings_page import meanings, settings_page
from cli.settings import StackSettings
from models.config.configuration import UP_VARIABLES
from models.config.settings import Settings

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"
GROUPS = [
    info.annotation
    for info in Settings.model_fields.values()
    if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
]


def test_the_page_in_the_repository_lists_the_settings_of_this_version() -> None:
    assert PAGE.read_text() == settings_page(), "./dev run config settings > docs/settings.md"


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_no_setting_is_left_without_a_meaning(group: type[BaseModel]) -> None:
    assert set(meanings(group)) == set(group.model_fields)
    assert all(text.endswith(".") for text in meanings(group).values())


def test_every_entry_has_a_meaning() -> None:
    page = PAGE.read_text().partition("## Variables of other programs")[0]
    entries = [line for line in page.splitlines() if line.startswith("- `")]
    assert len(entries) > 90
    assert all(re.fullmatch(r"- `[A-Z0-9_]+`(?: \(.+?\))?: \S.*\.", entry) for entry in entries)


def test_a_limit_without_a_meaning_is_explained_by_the_page_on_limits() -> None:
    limits = PAGE.with_name("limits.md").read_text()
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("- [Limits]")]
    names = {name for line in lines for name in re.findall(r"`BACKBURNER_\w+`", line)}
    assert len(names) > 100
    assert not {name for name in names if name not in limits}


def test_what_only_up_reads_is_a_known_variable() -> None:
    only_up = StackSettings.model_fields.keys() - Settings.model_fields.keys()
    assert {f"BACKBURNER_{name}".upper() for name in only_up} == UP_VARIABLES
