"""How this server identifies itself to an upstream, and how its credential stays out of error
texts.

Web processes, workers and the command line all call upstreams.
"""

import re
from collections.abc import Iterable
from typing import TypedDict

from models.config.upstream import UpstreamSettings

CREDENTIAL_STATUSES = frozenset({401, 403})
"""Statuses with which an upstream refuses the credential of this server. Clients get 502: theirs is
good."""
_CREDENTIAL_REFUSED = "The upstream refused this server's credential"

_SHORTENED_KEY = re.compile(
    r"(?<![\w-])(?:sk|pk|gsk|xai|bb|hf|nvapi|pplx|r8)[-_]\S+|\bAIza\S+|\S*\*{2,}\S*"
)
"""Words that may be a part of a key: `sk-pr…`, `abc***xyz`. Upstreams repeat a refused key so."""

_MAX_MESSAGE = 500
"""Characters of an upstream's message."""
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


def secrets_of(settings: UpstreamSettings) -> tuple[str, ...]:
    """The texts that must be removed from what this upstream sends: its key and its headers."""
    values = [settings.api_key.get_secret_value(), *settings.plain_headers.values()]
    words = [value.rpartition(" ")[2] for value in values]
    return tuple(sorted({text for text in (*values, *words) if is_secret(text)}, key=len))[::-1]


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, which some upstreams repeat in their messages."""
    for secret in secrets:
        text = text.replace(secret, "…")
    return text


def excerpt(message: str) -> str:
    """The part of an upstream's message that is shown."""
    return message[:_MAX_MESSAGE]


def credential_message(upstream_message: str) -> str:
    """The message for a refused credential, with the upstream's words, but without words that look
    like a key or a part of one."""
    words = excerpt(_SHORTENED_KEY.sub("…", upstream_message)).strip()
    return f"{_CREDENTIAL_REFUSED}: {words}" if words else f"{_CREDENTIAL_REFUSED}."
