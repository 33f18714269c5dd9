"""docs/operations.md, "Audit log", lists the actions that an entry can have."""

import re
from pathlib import Path

import pytest

from models.db.queries.audit import ACTIONS, Actor, ActorKind, AuditEntry

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def test_the_page_lists_each_action_once() -> None:
    part = PAGE.read_text().partition("\n## Audit log\n")[2].partition("\n## ")[0]
    listed = [
        name
        for line in part.splitlines()
        if line.startswith("- `")
        for name in re.findall(r"`([a-z_.]+)`", line.partition(": ")[0])
    ]
    assert sorted(listed) == sorted(ACTIONS)


def test_an_action_that_is_not_listed_cannot_be_recorded() -> None:
    with pytest.raises(ValueError, match=r"response\.steal"):
        AuditEntry(Actor(ActorKind.SERVER), "response.steal")
