"""The template of a schedule: the body of a create. Credentials of MCP servers are taken out of it,
stored sealed, and put back for each run."""

from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import orjson

from models.db.queries.api_keys import ApiKey
from models.errors import InvalidRequest, RefusedRequest
from models.secrets import NoKey, Sealed, Sealer, Unreadable
from models.wire.mcp import CREDENTIAL_FIELDS, origin, without_hidden_fields
from models.wire.request import CreateRequest, is_prewarm

Json = dict[str, Any]

PARAM: Final = "template"


@dataclass(frozen=True, slots=True)
class StoredTemplate:
    """A template as it is stored."""

    shown: Json
    """without credentials"""
    sealed: Sealed | None
    """the credentials; None: there are none"""


class UnreadableTemplate(Exception):
    """No configured key opens the credentials of a template."""


def seal_template(sealer: Sealer, schedule: UUID, body: Json) -> StoredTemplate:
    """The template of this schedule as it is stored. `body` was checked."""
    tools = body.get("tools") or []
    credentials = {
        str(index): {name: tool[name] for name in CREDENTIAL_FIELDS if tool.get(name) is not None}
        for index, tool in enumerate(tools)
        if tool["type"] == "mcp"
    }
    if not credentials:
        return StoredTemplate(body, None)
    try:
        sealed = sealer.seal(schedule, {"tools": credentials})
    except NoKey:  # a create with such tools was refused before
        raise InvalidRequest(
            "Tools of the type 'mcp' are not supported by this server: no sealing key is "
            "configured.",
            param=f"{PARAM}.tools",
            code="unsupported_parameter",
        ) from None
    return StoredTemplate({**body, "tools": [_shown_tool(tool) for tool in tools]}, sealed)


def _shown_tool(tool: Json) -> Json:
    if tool["type"] != "mcp":
        return tool
    return {**without_hidden_fields(tool), "server_url": origin(tool["server_url"])}


def open_template(sealer: Sealer, schedule: UUID, stored: StoredTemplate) -> Json:
    """The body of a create. Raises UnreadableTemplate."""
    if stored.sealed is None:
        return stored.shown
    try:
        credentials = sealer.open(schedule, stored.sealed)["tools"]
    except Unreadable:
        raise UnreadableTemplate from None
    tools = [
        {**tool, **credentials.get(str(index), {})}
        for index, tool in enumerate(stored.shown["tools"])
    ]
    return {**stored.shown, "tools": tools}


def require_schedules(key: ApiKey) -> None:
    """Raises InvalidRequest if the project of this key keeps nothing: a template has an input."""
    if key.policy.zero_retention:
        raise InvalidRequest(
            "This project has zero retention: it has no schedules.", code="unsupported_parameter"
        )


def template_size(body: Json) -> int:
    """Bytes of it as JSON."""
    return len(orjson.dumps(body))


def scheduled_request(request: CreateRequest, body: Json) -> CreateRequest:
    """The request in this body as a schedule runs it: in the background, stored, without the cache.
    Raises InvalidRequest for one that is streamed, or without an answer."""
    if is_prewarm(body):
        raise InvalidRequest(
            "A schedule cannot only prepare a prompt cache: leave 'prewarm' out.",
            param="prompt_cache_options.prewarm",
            code="unsupported_parameter",
        )
    if request.stream:
        raise InvalidRequest(
            "A schedule has no client that could read a stream: leave 'stream' out.",
            param="stream",
            code="unsupported_parameter",
        )
    for name in ("background", "store"):
        if body.get(name) is False:
            raise InvalidRequest(
                f"A schedule makes responses that are stored and run in the background: leave "
                f"'{name}' out.",
                param=name,
                code="unsupported_parameter",
            )
    return replace(request, background=True, cache=None)


def about_template(error: RefusedRequest) -> RefusedRequest:
    """The same error, with the place in the schedule."""
    error.param = PARAM if error.param is None else f"{PARAM}.{error.param}"
    return error
