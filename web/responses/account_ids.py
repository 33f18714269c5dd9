"""Ids and encrypted content of an upstream's account pass from a client only if they are its own.

All projects of a deployment use the same account of an upstream (docs/upstreams.md, "Projects that
share an account"). What names an object there is refused, unless the upstream's setting
`account_ids` lists the project, or an earlier output of the project has named it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from models.config.upstream import UpstreamSettings
from models.db.database import Pool, fetch_idempotent
from models.db.queries.api_keys import ApiKey
from models.db.queries.read import OWN_CONTAINERS
from models.errors import InvalidRequest
from models.projects.routes import ProjectRoutes
from models.secrets import Sealer
from models.wire.account_ids import (
    AccountId,
    item_account_ids,
    parameter_account_ids,
    tool_account_ids,
    unknown_account_ids,
)
from models.wire.checks.faults import shorten
from models.wire.checks.parameters import NATIVE_ONLY_PARAMETERS
from models.wire.encrypted_content import is_sealed_here, parse_tagged
from models.wire.events import Item
from models.wire.request import CreateRequest


class AccountIds:
    """Checks what requests name of the accounts of native upstreams."""

    def __init__(self, routes: ProjectRoutes, sealer: Sealer, pool: Pool) -> None:
        self._routes = routes
        self._sealer = sealer
        self._pool = pool
        self._natives = _natives_of(routes.server.upstreams.values())

    async def check(self, request: CreateRequest, key: ApiKey) -> CreateRequest:
        """The request, without encrypted content that is not known to be the project's own.

        Raises InvalidRequest.
        """
        upstreams = self._upstreams_of(request.model, key)
        self._check_passthrough(request, upstreams, key)
        if not self._natives:
            return request
        items = await self.check_items(request.input, key, unknown_fields=request.unknown_fields)
        if _is_guarded(_natives_of(upstreams), key):
            ids = list(tool_account_ids(request.parameters.get("tools", [])))
            await self._require_own(ids, key)
        return request if items is request.input else replace(request, input=items)

    async def check_items(
        self,
        items: list[Item],
        key: ApiKey,
        where: str = "input",
        unknown_fields: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[Item]:
        """The items, without encrypted content that is not known to be the project's own. They may
        be sent to any upstream later, so each native one must allow what they name, also in fields
        that this server does not know (by place).

        Raises InvalidRequest.
        """
        if not _is_guarded(self._natives, key):
            return items
        checked = self._check_encrypted(items, key, where)
        ids = [*item_account_ids(checked, where), *unknown_account_ids(unknown_fields)]
        await self._require_own(ids, key)
        return checked

    def check_proxied(
        self, model: str, ids: Iterable[AccountId], key: ApiKey, *, natives_only: bool
    ) -> None:
        """`ids`: those in a request that is forwarded to an upstream of this model. Raises
        InvalidRequest for any of them. `natives_only`: only if that is a native one."""
        upstreams = self._upstreams_of(model, key)
        if _is_guarded(_natives_of(upstreams) if natives_only else upstreams, key):
            for found in ids:
                raise _refused(found)

    def _check_passthrough(
        self, request: CreateRequest, upstreams: list[UpstreamSettings], key: ApiKey
    ) -> None:
        """Judges the parameters that an upstream gets unchecked. Raises InvalidRequest."""
        names = {name for upstream in upstreams for name in upstream.passthrough}
        if _natives_of(upstreams):
            names |= set(NATIVE_ONLY_PARAMETERS)
        passed = {name: request.parameters[name] for name in names & request.parameters.keys()}
        if passed and _is_guarded(upstreams, key):
            for found in parameter_account_ids(passed):
                raise _refused(found)

    def _upstreams_of(self, model: str, key: ApiKey) -> list[UpstreamSettings]:
        """The upstreams of this model for the project of the key."""
        destinations = self._routes.of(key.project_id, key.policy.routes).find(model)
        return [each.upstream for each in destinations]

    def _check_encrypted(self, items: list[Item], key: ApiKey, where: str) -> list[Item]:
        """The items without content that was stored without a sealing key, and so is not bound to a
        project. Raises InvalidRequest for content of another project or server."""
        checked = items
        for index, item in enumerate(items):
            if item["type"] != "reasoning" or not item.get("encrypted_content"):
                continue
            encrypted = item["encrypted_content"]
            if is_sealed_here(encrypted):
                continue
            tagged = parse_tagged(encrypted)
            if tagged is not None and tagged.mark is None:
                if checked is items:
                    checked = list(items)
                checked[index] = {
                    name: value for name, value in item.items() if name != "encrypted_content"
                }
            elif tagged is None or not self._sealer.is_marked(
                key.project_id, tagged.upstream, tagged.content, tagged.mark or b""
            ):
                raise InvalidRequest(
                    f"The encrypted content of the reasoning '{shorten(item['id'])}' is not one "
                    "that this server has given to this project. Leave the item out.",
                    param=f"{where}[{index}].encrypted_content",
                    code="invalid_encrypted_content",
                )
        return checked

    async def _require_own(self, ids: list[AccountId], key: ApiKey) -> None:
        for found in ids:
            if not found.is_container:
                raise _refused(found)
        if not ids:
            return
        values = {"project": key.project_id, "ids": list({found.id for found in ids})}
        own = set(await fetch_idempotent(self._pool, OWN_CONTAINERS, values))
        for found in ids:
            if found.id not in own:
                raise _refused(found)


def _natives_of(upstreams: Iterable[UpstreamSettings]) -> list[UpstreamSettings]:
    return [upstream for upstream in upstreams if upstream.api == "responses"]


def _is_guarded(upstreams: Iterable[UpstreamSettings], key: ApiKey) -> bool:
    """Whether one of these upstreams does not let the project name objects of its account."""
    return any(
        "*" not in upstream.account_ids and key.project not in upstream.account_ids
        for upstream in upstreams
    )


def _refused(found: AccountId) -> InvalidRequest:
    return InvalidRequest(
        f"'{found.param}' names an object of the upstream's account, which this server's projects "
        "share, and it is not known to be this project's. Leave it out, or let the server's "
        "operator list the project in the upstream's setting 'account_ids'.",
        param=found.param,
        code="account_id_not_allowed",
    )
