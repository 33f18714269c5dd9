"""Projects with quotas, made as an operator makes them."""

import secrets
from dataclasses import dataclass
from uuid import UUID

from models import keys
from models.projects.policy import ProjectPolicy
from models.projects.quotas import ProjectQuotas
from tests.support.api import Api
from tests.support.stack import Stack


@dataclass(frozen=True, slots=True)
class LimitedProject:
    """A project of its own, and a key."""

    stack: Stack
    id: UUID
    key: str

    def api(self, web: int = 0) -> Api:
        """A raw client of one web process."""
        return self.stack.api(web, key=self.key)


async def limited_project(stack: Stack, **quotas: int) -> LimitedProject:
    """A new project with these quotas."""
    name = f"limited-{secrets.token_hex(4)}"
    key = keys.create(stack.dsn, name)
    project = await stack.value(
        "UPDATE projects SET policy = %s::jsonb WHERE name = %s RETURNING id",
        ProjectPolicy(quotas=ProjectQuotas(**quotas)).model_dump_json(exclude_defaults=True),
        name,
    )
    return LimitedProject(stack, project, key)
