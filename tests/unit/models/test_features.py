"""Each part of a feature has what the process that loads it looks for (models/features.py)."""

from collections import Counter
from pathlib import Path

import pytest

import features
from models.features import FEATURES, feature_parts

NAMES = {
    "archive": {"archive"},
    "commands": {"COMMANDS"},
    "document": {"operations", "components"},
    "pages": {"PAGES"},
    "purge": {"purge"},
    "routes": {"ROUTERS"},
    "site": {"routes"},
    "web": {"FEATURE"},
    "worker": {"FEATURE"},
}


def test_the_list_has_each_folder() -> None:
    [root] = features.__path__
    folders = {path.parent.name for path in Path(root).glob("*/__init__.py")}
    assert folders == set(FEATURES)


def test_no_two_templates_have_one_name() -> None:
    [root] = features.__path__
    names = Counter(path.name for path in Path(root).glob("*/templates/*"))
    assert set(names.values()) == {1}


@pytest.mark.parametrize("part", NAMES)
def test_a_part_has_what_is_looked_for(part: str) -> None:
    for module in feature_parts(part):
        assert NAMES[part] <= vars(module).keys(), module.__name__
