"""What features add to the requests of a web process: checks of creates, and quotas."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from starlette.types import Receive, Scope, Send

from models.db.queries.api_keys import ApiKey
from models.projects.quotas import Limits
from models.redis.quota_counters import Demand
from models.wire.request import CreateRequest


class CreateCheck(Protocol):
    """A check of a feature. `native`: the model's upstream has the Responses API too. Raises
    ApiError."""

    async def __call__(self, request: CreateRequest, key: ApiKey, *, native: bool) -> None: ...


class Admission(Protocol):
    """A request that the quotas of its project have admitted and counted."""

    @property
    def end_connection(self) -> Callable[[], None] | None:
        """To be called when the stream or socket that it opens has ended; None: it opens none."""

    def undo(self) -> None:
        """The request has failed: it counts only as a request."""

    def settle(self) -> None:
        """What it has made is over, and has used no tokens."""


class Quotas:
    """The quotas of projects. Here no project has any; features/quotas/ has those that limit."""

    def limits_of(self, _key: ApiKey) -> Limits | None:
        """The quotas of the key's project. None: it has none."""
        return None

    def headers(self, _key: ApiKey) -> dict[str, str]:
        """What is left of the rates of the key's project."""
        return {}

    def require_rate(self, _key: ApiKey) -> Limits | None:
        """Refuses a request whose body is not read yet, if that is certain. Returns the quotas, as
        `limits_of`. Raises QuotaExceeded."""
        return None

    async def admit(self, project: UUID, limits: Limits, demand: Demand) -> Admission:
        """Admits and counts a request. Raises QuotaExceeded."""
        raise NotImplementedError

    async def admit_if_limited(self, key: ApiKey, demand: Demand) -> Admission | None:
        """`admit`; None if the project has no quotas."""
        limits = self.limits_of(key)
        return None if limits is None else await self.admit(key.project_id, limits, demand)

    @asynccontextmanager
    async def admitted(
        self, project: UUID, limits: Limits, demand: Demand
    ) -> AsyncGenerator[Admission]:
        """`admit`; if the block raises, the admission is undone."""
        admission = await self.admit(project, limits, demand)
        try:
            yield admission
        except BaseException:
            admission.undo()
            raise

    def on_ended(self, project: UUID, response: UUID) -> None:
        """This process has ended a response that no worker had claimed."""


class Relay(Protocol):
    """Answers requests that another deployment serves."""

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send
    ) -> tuple[Receive, Send] | None:
        """None: the request was answered. Else it is served here, with these two."""


@dataclass(slots=True)
class Hooks:
    """What the features of one web process have added; they do it when they are opened."""

    checks: list[CreateCheck] = field(default_factory=list)
    """of a create; the first error counts"""
    quotas: Quotas = field(default_factory=Quotas)
    relay: Relay | None = None
    """of requests and WebSockets; None: all are served here"""
