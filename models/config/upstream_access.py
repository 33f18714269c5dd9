"""How this server identifies itself to an upstream, and how its credential stays out of error
texts.

Web processes, workers and the command line all call upstreams.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import TypedDict
from urllib.parse import quote, quote_plus

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
        "default_query": dict(settings.plain_query),
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
    """The texts that must be removed from what this upstream sends, the longest first: its key, and
    the values of its headers and of its query, as they are and as JSON and addresses write them."""
    values = [
        settings.api_key.get_secret_value(),
        *settings.plain_headers.values(),
        *settings.plain_query.values(),
    ]
    words = [value.rpartition(" ")[2] for value in values]
    texts = {spelling for text in (*values, *words) for spelling in _spellings(text)}
    return tuple(sorted(filter(is_secret, texts), key=lambda text: (-len(text), text)))


def _spellings(text: str) -> Iterator[str]:
    yield text
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield quote(text, safe="")
    yield quote(text)
    yield quote_plus(text)


def all_secrets(upstreams: Iterable[UpstreamSettings]) -> tuple[str, ...]:
    """The secrets of these upstreams, each once: no log shows them."""
    return tuple(dict.fromkeys(text for upstream in upstreams for text in secrets_of(upstream)))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, which some upstreams repeat in their messages; also without
    the beginning of one at its end, where the text was cut."""
    for secret in secrets:
        text = text.replace(secret, "…")
    for secret in secrets:
        for length in range(len(secret) - 1, _MIN_SECRET - 1, -1):
            if text.endswith(secret[:length]):
                return f"{text[:-length]}…"
    return text


def excerpt(message: str) -> str:
    """The part of an upstream's message that is shown."""
    return message[:_MAX_MESSAGE]


def credential_message(upstream_message: str) -> str:
    """The message for a refused credential, with the upstream's words, but without words that look
    like a key or a part of one."""
    words = excerpt(_SHORTENED_KEY.sub("…", upstream_message)).strip()
    return f"{_CREDENTIAL_REFUSED}: {words}" if words else f"{_CREDENTIAL_REFUSED}."
