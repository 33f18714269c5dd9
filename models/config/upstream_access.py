"""How this server identifies itself to an upstream, and how its credential stays out of error
texts.

Web processes, workers and the command line all call upstreams.
"""

from typing import TypedDict

from models.config.upstream import UpstreamSettings

CREDENTIAL_STATUSES = frozenset({401, 403})
"""Statuses after which the upstream's message is about our credential: for operators only."""
CREDENTIAL_REFUSED = "The upstream refused this server's credential."
"""What clients see instead."""

_MIN_SECRET = 8
"""Characters of the shortest secret credential. Shorter ones are words such as `none`, for local
servers, and may be part of any text."""


class ClientOptions(TypedDict):
    """Arguments of openai's client."""

    base_url: str
    api_key: str
    default_headers: dict[str, str]
    default_query: dict[str, object]


def client_options(settings: UpstreamSettings) -> ClientOptions:
    """The arguments with which openai's client calls this upstream."""
    return {
        "base_url": settings.base_url,
        "api_key": settings.api_key.get_secret_value(),
        "default_headers": settings.plain_headers,
        "default_query": dict(settings.query),
    }


def request_headers(settings: UpstreamSettings) -> dict[str, str]:
    """The headers of a JSON request to this upstream without openai's client."""
    return {
        "authorization": f"Bearer {settings.api_key.get_secret_value()}",
        **settings.plain_headers,
        "content-type": "application/json",
        "accept-encoding": "identity",
    }


def is_secret(credential: str) -> bool:
    """Whether a credential must be removed from texts."""
    return len(credential) >= _MIN_SECRET
