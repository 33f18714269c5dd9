"""All that the admin API shows and changes."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from features.tenants.keys import AdminKeys, ProjectKeys
from features.tenants.projects import Projects
from features.tenants.service_accounts import ServiceAccounts
from models.db.database import Pool


@dataclass(frozen=True, slots=True)
class Organization:
    """The projects of this server, and who may use them."""

    projects: Projects
    project_keys: ProjectKeys
    service_accounts: ServiceAccounts
    admin_keys: AdminKeys

    @classmethod
    def open(cls, pool: Pool, upstreams: Collection[str]) -> Self:
        """`upstreams`: the names of those that are configured."""
        projects = Projects(pool, upstreams)
        return cls(
            projects,
            ProjectKeys(pool, projects),
            ServiceAccounts(pool, projects),
            AdminKeys(pool, projects),
        )
