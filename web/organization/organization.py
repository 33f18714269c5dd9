"""All that the admin API shows and changes.

Everything is in one statement or one transaction, with its entry in the audit log
(docs/adr/0043-usage-is-written-with-the-ending.md).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from models.db.database import Pool
from web.organization.admin_keys import AdminKeys
from web.organization.key_store import KeyStore
from web.organization.project_keys import ProjectKeys
from web.organization.projects import Projects
from web.organization.service_accounts import ServiceAccounts


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
        projects, keys = Projects(pool, upstreams), KeyStore(pool)
        return cls(
            projects,
            ProjectKeys(pool, projects, keys),
            ServiceAccounts(pool, projects, keys),
            AdminKeys(pool, projects, keys),
        )
