"""Projects with quotas, made as an operator makes them."""

import secrets
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import psycopg

from models.projects.policy import ProjectPolicy
from models.projects.quotas import ProjectQuotas
from tests.support import keys
from tests.support.api import Api
from tests.support.stack import Stack

_SHORT_LIVED = "short-lived"


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


def short_retention_key(stack: Stack, seconds: int) -> str:
    """A key of the project whose stored responses are kept for so long."""
    key = keys.create(stack.dsn, _SHORT_LIVED)
    policy = ProjectPolicy(retention=timedelta(seconds=seconds))
    with psycopg.connect(stack.dsn, autocommit=True) as connection:
        connection.execute(
            "UPDATE projects SET policy = %s::jsonb WHERE name = %s",
            [policy.model_dump_json(exclude_defaults=True), _SHORT_LIVED],
        )
    return key
