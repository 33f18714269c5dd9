"""The retry in the API document."""

from features.reference import examples, schemas
from features.reference.document import UPSTREAM_STATUSES
from features.reference.meaning import PARAMETERS
from features.retry.body import CHANGEABLE
from models.wire.api_schema import Schema, const, nullable
from models.wire.without_effect import HEADER as IGNORED_HEADER
from web.http.json_responses import POLL_HEADER

CODES = {
    "response_not_ended": "the response that is to be run again has not ended",
    "mcp_credentials_required": "addresses and credentials of MCP servers must be sent again",
}


def operations() -> dict[str, schemas.Json]:
    """Name of a route's function -> its operation."""
    shown = schemas.response(
        "The new response, as for a create. Its `retry_of` is the old one.",
        "Response",
        IGNORED_HEADER,
        POLL_HEADER,
        examples={"in the background": examples.response(ended=False)},
    )
    bodies = {"with another model": {"model": "demo"}, "the same request": {}}
    return {
        "retry": schemas.operation(
            "Run a response again",
            shown,
            *UPSTREAM_STATUSES,
            body=schemas.request_body("RetryResponse", bodies, required=False),
            once=True,
        )
    }


def components(deployment: schemas.Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    scope, parameters = deployment.sent, deployment.parameters
    fields = {
        name: schemas.described(nullable(parameters[name].schema(scope)), PARAMETERS[name])
        for name in CHANGEABLE
    }
    server = {
        "type": "object",
        "properties": {"type": const("mcp")},
        "required": ["type", "server_label"],
    }
    fields["tools"] = schemas.described(
        nullable(schemas.array_of(server)),
        "The MCP servers of the response, with `server_label`, `server_url` and credentials: those "
        "are deleted when a response ends.",
    )
    return {"RetryResponse": schemas.strict({}, fields)}
