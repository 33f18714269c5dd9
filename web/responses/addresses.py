"""Addresses that a client names, judged before anything is stored: what the worker's guard would refuse by the address alone."""

from models.egress import EgressPolicy, EgressRefused
from models.errors import InvalidRequest
from models.wire.events import Item
from models.wire.items import file_places
from models.wire.request import CreateRequest


def require_fetchable(egress: EgressPolicy, items: list[Item], where: str = "input") -> None:
    """Of every file by URL; what only the connection shows comes out in the run. `where`: the name of the list in the request.

    Raises InvalidRequest.
    """
    for place in file_places(items):
        try:
            egress.check_url(place.url)
        except EgressRefused as refusal:
            param = place.path(place.item, where)
            raise InvalidRequest(
                f"Invalid '{param}': {refusal}.", param=param, code="invalid_value"
            ) from None


def require_reachable(egress: EgressPolicy, request: CreateRequest) -> None:
    """As above of MCP servers. The answer repeats nothing of an address, it may hold a key."""
    for index, tool in enumerate(request.parameters.get("tools", ())):
        if tool["type"] != "mcp":
            continue
        try:
            egress.check_url(request.credentials[tool["server_label"]]["server_url"])
        except EgressRefused as refusal:
            param = f"tools[{index}].server_url"
            raise InvalidRequest(
                f"Invalid '{param}': {refusal}.", param=param, code="invalid_value"
            ) from None
