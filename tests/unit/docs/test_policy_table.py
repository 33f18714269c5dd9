"""docs/projects.md, "Policy", lists every field that the policy of a project can have."""

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from models.projects.policy import ProjectPolicy

PAGE = Path(__file__).parents[3] / "docs" / "projects.md"


def _fields(group: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, info in group.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_the_page_lists_each_field_once() -> None:
    part = PAGE.read_text().partition("\n## Policy\n")[2].partition("\n## ")[0]
    listed = [
        name
        for line in part.splitlines()
        if line.startswith("- `")
        for name in re.findall(r"`([a-z_.]+)`", line.partition(": ")[0].partition(" (")[0])
    ]
    assert sorted(listed) == sorted(_fields(ProjectPolicy))
