"""How this server identifies itself to an upstream, and how its credential stays out of error
texts.

Web processes, workers and the command line all call upstreams.
"""

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, urlsplit
from urllib.request import getproxies, proxy_bypass

from models.config.upstream import UpstreamSettings

CREDENTIAL_STATUSES = frozenset({401, 403})
"""Statuses with which an upstream refuses the credential of this server. Clients get 502: theirs is
good."""
_CREDENTIAL_REFUSED = "The upstream refused this server's credential"

_SHORTENED_KEY = re.compile(
    r"(?<![\w-])(?:sk|pk|gsk|xai|bb|hf|nvapi|pplx|r8)[-_]\S+|\bAIza\S+|\S*\*{2,}\S*"
)
"""Words that may be a part of a key: `sk-pr…`, `abc***xyz`. Upstreams repeat a refused key so."""

_MESSAGES_VERSION = "2023-06-01"
"""The version of Anthropic's API, unless `headers` of the upstream name another."""

_MAX_MESSAGE = 500
"""Characters of an upstream's message."""
_MIN_SECRET = 8
"""Characters of the shortest secret credential. Shorter ones are words such as `none`, for local
servers, and may be part of any text."""


def request_headers(settings: UpstreamSettings) -> dict[str, str]:
    """The headers of a JSON request to this upstream without openai's client."""
    key = settings.api_key.get_secret_value()
    return {
        settings.key_header: f"Bearer {key}" if settings.key_header == "authorization" else key,
        **({"anthropic-version": _MESSAGES_VERSION} if settings.api == "messages" else {}),
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


_EVENT_END = re.compile(rb"(?<=\n\n)|(?<=\n\r\n)")
"""The place between two events of a stream."""
_EVENT_ENDS = (b"\n\n", b"\n\r\n")
_MAX_HELD = 1024 * 1024
"""Bytes of an event that are kept back until its end is there."""


class StreamedSecrets:
    """Removes secrets from the errors in a stream of events, which goes on byte for byte otherwise:
    a header's value may be a common word, and what the model writes must not be changed.

    Only the beginning of a secret at the end of a piece is kept back, and what follows a secret in
    an event until the end of this event shows whether it is an error.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._texts = tuple(secrets)
        self._secrets = tuple(text.encode() for text in self._texts)
        self._bytes = frozenset(b"".join(self._secrets))
        self._held = b""
        self._is_inside = False
        """Whether a part of an event was returned and its end was not."""

    def feed(self, piece: bytes) -> bytes:
        """What may be sent now, of this piece and what was kept back before."""
        data = self._held + piece
        if not any(secret in data for secret in self._secrets):
            end = len(data) - self._beginning_at_end(data)
            self._held = data[end:]
            return self._sent(data[:end])
        *events, self._held = _EVENT_END.split(data)
        sent = b"".join(map(self._judged, events))
        if len(self._held) > _MAX_HELD:
            sent, self._held = sent + self._without(self._held), b""
        return self._sent(sent)

    def finish(self) -> bytes:
        """What was kept back, at the end of the stream."""
        held, self._held = self._held, b""
        return self._judged(held)

    def _judged(self, event: bytes) -> bytes:
        """The event without secrets if it is an error, or if its beginning was sent before: then
        nobody knows."""
        is_error = self._is_inside or b"error" in event.lower()
        self._is_inside = False
        return self._without(event) if is_error else event

    def _without(self, event: bytes) -> bytes:
        text = without_secrets(event.decode(errors="surrogateescape"), self._texts)
        return text.encode(errors="surrogateescape")

    def _sent(self, data: bytes) -> bytes:
        if data:
            self._is_inside = not data.endswith(_EVENT_ENDS)
        return data

    def _beginning_at_end(self, data: bytes) -> int:
        """How many bytes at the end of the data may be the beginning of a secret."""
        if not data or data[-1] not in self._bytes:
            return 0  # as at the end of an event
        return max(
            (
                length
                for secret in self._secrets
                for length in range(1, len(secret))
                if data.endswith(secret[:length])
            ),
            default=0,
        )


def excerpt(message: str) -> str:
    """The part of an upstream's message that is shown."""
    return message[:_MAX_MESSAGE]


def credential_message(upstream_message: str) -> str:
    """The message for a refused credential, with the upstream's words, but without words that look
    like a key or a part of one."""
    words = excerpt(_SHORTENED_KEY.sub("…", upstream_message)).strip()
    return f"{_CREDENTIAL_REFUSED}: {words}" if words else f"{_CREDENTIAL_REFUSED}."


def environment_proxy(address: str) -> str | None:
    """The proxy through which the environment sends requests to this address, as curl reads it."""
    found = proxy_variable(address)
    if found is None:
        return None
    _, proxy = found
    return proxy if "://" in proxy else f"http://{proxy}"


def proxy_variable(address: str) -> tuple[str, str] | None:
    """The name of the variable (`http_proxy`, `https_proxy`, `all_proxy`) that sends requests to
    this address through a proxy, and its value."""
    parts = urlsplit(address)
    proxies = getproxies()
    name = next((each for each in (parts.scheme, "all") if proxies.get(each)), None)
    if name is None or proxy_bypass(parts.netloc):
        return None
    return f"{name}_proxy", proxies[name]
