"""Checks of a create request before it is stored: what would fail in every run is refused."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from models.config.routes import Destination, accepted_parameters
from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.db.database import Pool, fetch_idempotent
from models.db.queries.api_keys import ApiKey
from models.db.queries.history import (
    ANSWERED_CALL,
    APPROVAL_REQUESTS,
    CONVERSATION_APPROVAL_REQUESTS,
    CUT_OFF_CALLS,
)
from models.egress import EgressPolicy, FetchTarget
from models.errors import InvalidRequest
from models.ids import new_item_id
from models.projects.requests import limit_tier, without_storage
from models.projects.routes import ProjectRoutes
from models.secrets import Sealer, Unreadable
from models.wire.checks.faults import shorten
from models.wire.compaction import newest_compaction
from models.wire.events import Item
from models.wire.mcp import approval_requests, approval_responses, unmet_approvals
from models.wire.pairing import OutputWithoutCall, is_output
from models.wire.request import (
    CreateRequest,
    CreateRules,
    parse_create,
    require_strict_schemas,
    with_approvals,
    without_searches,
)
from web.http.auth import require_model
from web.http.body import JsonBody
from web.http.errors import find_upstreams
from web.http.outbound_urls import (
    require_fetchable,
    require_item_urls,
    require_names,
    require_parameter_urls,
)
from web.responses.account_ids import AccountIds
from web.responses.continuation import Continuation, resolve_references
from web.responses.input_files import InputFiles

_T = TypeVar("_T")


class RequestValidation:
    """Parses and checks create requests by the settings of this deployment."""

    def __init__(
        self,
        settings: Settings,
        routes: ProjectRoutes,
        egress: EgressPolicy,
        sealer: Sealer,
        pool: Pool,
        *,
        has_storage: bool,
    ) -> None:
        """`has_storage`: this server stores files."""
        self.account_ids = AccountIds(routes, sealer, pool)
        upstreams = list(routes.server.upstreams.values())
        self.input_files = InputFiles(pool, upstreams, settings, has_storage=has_storage)
        self._pool = pool
        self._settings = settings
        self._routes = routes
        self._all_passthrough = routes.server.all_passthrough
        self._egress = egress
        self._sealer = sealer
        self._has_strict_rules = settings.web.strict_schemas == "openai"

    async def parse(self, body: JsonBody, key: ApiKey, *, generate: bool) -> CreateRequest:
        """The create request in `body`, checked without what it continues. It is as the policy of
        its project lets it be made.

        `generate`: False if the model will not be called, so that `input` may be left out. Raises
        InvalidRequest, ModelNotAllowed and UpstreamNotConfigured.
        """
        request = await self._parse(body, key, generate=generate)
        request = await self.account_ids.check(request, key)
        require_model(key, request.model)
        if key.policy.zero_retention:
            request = without_storage(request)
        return limit_tier(request, key.policy.highest_tier)

    async def check_items(
        self, items: list[Item], key: ApiKey, where: str, unknown_fields: Mapping[str, Any]
    ) -> list[Item]:
        """Items that are stored without a response, with their references resolved. `where`: the
        name of their list in the request. Raises InvalidRequest, as for the input of a create."""
        require_item_urls(self._egress.of_project(key.policy.egress), items, where)
        if self._has_strict_rules:
            require_strict_schemas({}, items, where)
        items = await self.account_ids.check_items(items, key, where, unknown_fields)
        return await self.resolve_items(items, key.project_id, where)

    async def resolve_items(
        self,
        items: list[Item],
        project: UUID,
        where: str = "input",
        upstreams: Sequence[UpstreamSettings] | None = None,
    ) -> list[Item]:
        """The items, with each reference replaced by the item it names. `upstreams`: those that may
        get the items; None: any one. Raises InvalidRequest, also for a compaction or a file that
        the project does not have."""
        limit = self._settings.limits.body
        items = await resolve_references(self._pool, project, items, limit, where)
        self._require_readable(items, project, where)
        await self.input_files.check(project, items, where, upstreams=upstreams)
        return items

    async def _parse(self, body: JsonBody, key: ApiKey, *, generate: bool) -> CreateRequest:
        model = _model_name(body.value)
        upstreams = find_upstreams(self._routes.of(key.project_id, key.policy.routes), model)
        rules = self._rules_of(upstreams)
        parse = partial(parse_create, new_id=new_item_id, rules=rules, generate=generate)
        request = await body.run(partial(parse, body.value))
        if not upstreams:
            raise InvalidRequest(
                f"The requested model '{request.model}' does not exist. "
                "GET /v1/models lists those that do.",
                param="model",
                code="model_not_found",
            )
        egress = self._egress.of_project(key.policy.egress)
        urls = await body.run(partial(self._require_possible, request, egress))
        await require_names(egress, urls)
        request = with_approvals(request, self._settings.mcp.require_approval)
        return request if rules.searches else without_searches(request)

    def _rules_of(self, upstreams: Sequence[Destination]) -> CreateRules:
        """What a create for these upstreams may ask for; the first of them decides."""
        first = upstreams[0].upstream if upstreams else None
        return CreateRules(
            passthrough=accepted_parameters(upstreams),
            ephemeral_background=self._settings.web.ephemeral_background,
            has_web_search=self._settings.web_search.provider is not None,
            omits_web_search=self._settings.web_search.omit,
            has_images=self._settings.images.model is not None,
            native=first is not None and first.api == "responses",
            strict_schemas=self._has_strict_rules,
            unsent=() if first is None else first.unsent,
        )

    def upstreams_of(self, key: ApiKey, model: str) -> list[UpstreamSettings]:
        """Those that serve the model for the project of the key."""
        routes = self._routes.of(key.project_id, key.policy.routes)
        return [destination.upstream for destination in routes.find(model)]

    def _require_readable(self, items: list[Item], project: UUID, where: str) -> None:
        """Raises InvalidRequest for a compaction item that was not made by this deployment for this
        project."""
        for index, item in enumerate(items):
            if item["type"] != "compaction":
                continue
            try:
                self._sealer.open_token("compaction", project, item["encrypted_content"])
            except Unreadable:
                message = (
                    f"The encrypted content of the compaction '{item['id']}' cannot be read: it "
                    "was changed, or made by another server, for another project, or with a "
                    "sealing key that this server no longer has."
                )
                raise InvalidRequest(
                    message,
                    param=f"{where}[{index}].encrypted_content",
                    code="invalid_encrypted_content",
                ) from None

    def _require_possible(
        self, request: CreateRequest, egress: EgressPolicy
    ) -> dict[str, FetchTarget]:
        """The URLs in the parameters that an upstream gets unchecked, by their places.

        Raises InvalidRequest for an address that the egress rules of the project refuse: of a file,
        an MCP server, or in these parameters; for too many MCP servers; and for what needs a
        sealing key if there is none.
        """
        if len(request.credentials) > self._settings.mcp.servers:
            raise InvalidRequest(
                f"Invalid 'tools': there are more than {self._settings.mcp.servers} MCP servers.",
                param="tools",
                code="array_above_max_length",
            )
        require_item_urls(egress, request.input)
        for index, tool in enumerate(request.parameters.get("tools", ())):
            if tool["type"] == "mcp":
                url = request.credentials[tool["server_label"]]["server_url"]
                require_fetchable(egress, url, f"tools[{index}].server_url")
        urls = require_parameter_urls(egress, request.parameters, self._all_passthrough)
        self._require_sealable(request)
        self._require_compactable(request)
        return urls

    def _require_sealable(self, request: CreateRequest) -> None:
        """Raises InvalidRequest for credentials if no key is configured to seal them with."""
        if not request.credentials or self._sealer.has_key:
            return
        index = next(
            index for index, tool in enumerate(request.parameters["tools"]) if tool["type"] == "mcp"
        )
        raise InvalidRequest(
            "Tools of the type 'mcp' are not supported by this server: "
            "no sealing key is configured.",
            param=f"tools[{index}]",
            code="unsupported_parameter",
        )

    def _require_compactable(self, request: CreateRequest) -> None:
        """Raises InvalidRequest for a compaction without a sealing key or without a history."""
        last = len(request.input) - 1
        is_forced = last >= 0 and request.input[last]["type"] == "compaction_trigger"
        if not self._sealer.has_key and (is_forced or "context_management" in request.parameters):
            raise InvalidRequest(
                "Compaction is not supported by this server: no sealing key is configured.",
                param="context_management"
                if "context_management" in request.parameters
                else f"input[{last}]",
                code="unsupported_parameter",
            )
        if (
            is_forced
            and last == 0
            and request.previous_response_id is None
            and request.conversation is None
        ):
            raise InvalidRequest(
                "Invalid 'input': there is nothing to compact. Send items before it, or a "
                "'previous_response_id'.",
                param="input",
                code="invalid_value",
            )


async def require_valid_approvals(
    pool: Pool, continuation: Continuation, request: CreateRequest
) -> None:
    """Raises InvalidRequest for an approval response without its request, or whose call cannot be
    made.

    An approved call needs its MCP server among the tools of this request: only they have the
    credentials.
    """
    servers = await require_approval_requests(pool, continuation, request.input)
    called = {
        item.get("approval_request_id") for item in request.input if item["type"] == "mcp_call"
    }
    for request_id, approval in approval_responses(request.input).items():
        if (
            approval["approve"]
            and request_id not in called
            and servers[request_id] not in request.credentials
        ):
            raise InvalidRequest(
                f"The approved call needs the MCP server '{shorten(servers[request_id])}', "
                "which is not among 'tools'.",
                param="tools",
                code="invalid_value",
            )


async def require_approval_requests(
    pool: Pool, continuation: Continuation, items: list[Item], where: str = "input"
) -> dict[str, str]:
    """The approval requests that the items answer: id -> label of the MCP server.

    A request is among the items or in the history before them. Raises InvalidRequest(param=where)
    if there is none.
    """
    approvals = approval_responses(items)
    unmet = unmet_approvals(items) if approvals else []
    servers = {
        request_id: item["server_label"]
        for request_id, item in approval_requests(items).items()
        if request_id not in unmet
    }
    if unmet and continuation.previous is not None:
        rows = await fetch_idempotent(
            pool, APPROVAL_REQUESTS, {"id": continuation.previous, "ids": unmet}
        )
        servers |= {row.id: row.server_label for row in rows}
    if unmet and continuation.conversation is not None:
        rows = await fetch_idempotent(
            pool, CONVERSATION_APPROVAL_REQUESTS, {"id": continuation.conversation, "ids": unmet}
        )
        servers |= {row.id: row.server_label for row in rows}
    for request_id in approvals:
        if request_id not in servers:
            raise InvalidRequest(
                "No approval request found for MCP approval response with approval_request_id "
                f"'{shorten(request_id)}'.",
                param=where,
            )
    return servers


async def match_calls(
    pool: Pool,
    continuation: Continuation,
    items: list[Item],
    match: Callable[[list[Item], Collection[str]], _T],
) -> _T:
    """What `match` returns for new items and the calls that are open before them. A call that was
    cut off needs no output; it counts as open if the items have one. Raises what `match` raises,
    with a message that explains it."""
    open_calls = continuation.open_calls
    for is_last_try in (False, True):
        try:
            return match(*_drop_compacted(items, open_calls))
        except OutputWithoutCall as error:
            if is_last_try:
                raise await _explain_output(pool, continuation, error) from None
            values = {
                "id": continuation.previous,
                "conversation": continuation.conversation,
                "call_ids": [item["call_id"] for item in items if is_output(item)],
            }
            open_calls = [*open_calls, *await fetch_idempotent(pool, CUT_OFF_CALLS, values)]
    raise AssertionError("unreachable")


async def _explain_output(
    pool: Pool, continuation: Continuation, error: OutputWithoutCall
) -> InvalidRequest:
    """The error for an output without an open call: with a message of its own if the history has an
    output of that call already."""
    values = {
        "id": continuation.previous,
        "conversation": continuation.conversation,
        "call_id": error.call_id,
    }
    if not await fetch_idempotent(pool, ANSWERED_CALL, values):
        return error
    return InvalidRequest(
        f"A {error.noun} with call_id {error.call_id} is in the history already. Send only outputs "
        "that were not sent before.",
        param=error.param,
    )


def _drop_compacted(
    items: list[Item], open_calls: Collection[str]
) -> tuple[list[Item], Collection[str]]:
    """The items after the last compaction, and the calls that were open before them.

    A compaction replaces everything before it, so no call is open then.
    """
    position = newest_compaction(items)
    return (items[position + 1 :], ()) if position >= 0 else (items, open_calls)


def _model_name(body: Any) -> str:
    """The requested model; empty if the body has none."""
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) else ""
