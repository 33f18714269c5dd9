"""Asks an upstream once for its models, and explains a failure in one sentence.

It takes the way of a worker's calls: the same key, headers, certificates and proxies
(worker/upstream/client.py). It costs the upstream no tokens.
"""

import json
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2

from models.config.routes import DEFAULT
from models.config.upstream import UpstreamSettings
from models.config.upstream_access import (
    CREDENTIAL_STATUSES,
    proxy_variable,
    request_headers,
    secrets_of,
    without_secrets,
)

TIMEOUT = 5.0
"""Longest time in seconds for one request."""
_BODY_LIMIT = 8 * 1024 * 1024
_MORE_MODELS = {"limit": "1000"}
"""Anthropic's API lists twenty models unless more are asked for."""
_SHOWN = 120
"""Characters of an error's text that are shown."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model in an upstream's list."""

    id: str
    created: int = 0
    """seconds since the epoch; 0: not listed"""
    owned_by: str = "upstream"


@dataclass(frozen=True, slots=True)
class UpstreamProbe:
    """What an upstream answered."""

    listed: tuple[ListedModel, ...] = ()
    problem: str | None = None
    """for the operator: a sentence with address, reason and remedy"""
    answer: str = ""
    """for a client: what the upstream did instead, without its address"""

    @property
    def sentence(self) -> str:
        """The problem with its last mark; empty if there is none."""
        if self.problem is None:
            return ""
        return self.problem if self.problem.endswith("?") else f"{self.problem}."

    @property
    def models(self) -> tuple[str, ...]:
        """The names of its models."""
        return tuple(model.id for model in self.listed)


def probe_upstream(upstream: UpstreamSettings, timeout: float = TIMEOUT) -> UpstreamProbe:
    """Requests the upstream's list of models. Never raises for what the upstream does."""
    address = upstream.base_url.rstrip("/")
    try:
        with httpx2.Client(
            headers=request_headers(upstream),
            params={**_MORE_MODELS, **upstream.plain_query}
            if upstream.api == "messages"
            else upstream.plain_query,
            timeout=timeout,
            follow_redirects=False,  # as in a call: headers go only to the configured address
        ) as client:
            deadline = time.monotonic() + timeout
            status, models = _list_models(client, address, deadline)
            if models is not None:
                return UpstreamProbe(models)
            reason = _explain_status(upstream, address, status)
            answer = "sent no list" if status == HTTPStatus.OK else f"answered {status}"
            if status not in CREDENTIAL_STATUSES and not address.endswith("/v1"):
                below, listed = _list_models(client, f"{address}/v1", deadline)
                if listed is not None or below in CREDENTIAL_STATUSES:
                    reason = f"has its API at {address}/v1: use that address"
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
        explained = without_secrets(_explain_error(error, timeout), secrets_of(upstream))
        reason = explained + _proxy_note(address)
        is_late = isinstance(error, httpx2.TimeoutException)
        answer = f"did not answer within {timeout:g} s" if is_late else "could not be reached"
    return UpstreamProbe(problem=f"the upstream {address} {reason}", answer=answer)


def _list_models(
    client: httpx2.Client, address: str, deadline: float
) -> tuple[int, tuple[ListedModel, ...] | None]:
    """The status, and the models; None if the body is no list of models."""
    body = b""
    with client.stream("GET", f"{address}/models") as answer:
        if answer.status_code != HTTPStatus.OK:
            return answer.status_code, None
        for part in answer.iter_bytes():
            body += part
            if len(body) > _BODY_LIMIT or time.monotonic() > deadline:
                break
    return answer.status_code, _listed(body)


def _listed(body: bytes) -> tuple[ListedModel, ...] | None:
    try:
        listed: Any = json.loads(body)["data"]
        return tuple(
            ListedModel(
                str(model["id"]),
                int(model.get("created") or 0),
                str(model.get("owned_by") or "upstream"),
            )
            for model in listed
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _explain_status(upstream: UpstreamSettings, address: str, status: int) -> str:
    if status in CREDENTIAL_STATUSES:
        return f"refuses the key ({status}): set {_variable(upstream, 'API_KEY')}"
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return f"is behind a proxy that refuses this server (407){_proxy_note(address)}"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "answers 429: it limits how often it is called; try again later"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return f"answers {status}: look into its log{_proxy_note(address)}"
    if status == HTTPStatus.BAD_REQUEST and address.startswith("http://"):
        return "answers 400: does its address need https://?"
    what = "has no list of models" if status == HTTPStatus.OK else f"answers {status}"
    remedy = "" if address.endswith("/v1") else "; most addresses end with /v1"
    return f"{what} at {address}/models: check the address{remedy}"


_REASONS = (
    (r"WRONG_VERSION_NUMBER|record layer failure", "speaks plain HTTP: use http:// in its address"),
    (r"CERTIFICATE_VERIFY_FAILED", "has a certificate that is not trusted: set SSL_CERT_FILE"),
    (r"refused", "refuses the connection: start it, or correct host and port"),
    (
        r"name resolution|not known|nodename|No address|getaddrinfo",
        "has a host name that does not exist: correct it",
    ),
    (r"unreachable|No route", "is not reachable from this machine: check the network"),
    (
        r"disconnected|closed|reset|illegal|Invalid HTTP",
        "closes the connection without an answer: does its address need https://?",
    ),
)
"""A text of an error -> the reason and the remedy."""


def _explain_error(error: Exception, timeout: float) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return f"does not answer within {timeout:g} s: check host, port and firewall"
    text = str(error)
    for pattern, reason in _REASONS:
        if re.search(pattern, text, re.IGNORECASE):
            return reason
    return f"cannot be called: {' '.join(text.split())[:_SHOWN] or type(error).__name__}"


def _proxy_note(address: str) -> str:
    """Which variable sends calls of this address through a proxy; empty if none does."""
    found = proxy_variable(address)
    if found is None:
        return ""
    variable, proxy = found
    variable = variable.upper() if variable.upper() in os.environ else variable  # noqa: TID251
    host = urlsplit(address).hostname or ""
    return f"; {variable} sends it through {_without_user(proxy)}: NO_PROXY={host} avoids that"


def _without_user(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))


def _variable(upstream: UpstreamSettings, setting: str) -> str:
    if upstream.api_key_env is not None:
        return upstream.api_key_env
    if upstream.name == DEFAULT:
        return f"BACKBURNER_UPSTREAM__{setting}"
    return f"BACKBURNER_UPSTREAMS__{upstream.name.upper()}__{setting}"


_NO_CHAT = re.compile(
    r"embed|rerank|whisper|transcri|tts|speech|audio|realtime|image|dall-e|sora|moderation|guard|"
    r"babbage|davinci|search|bge-|instruct-?0914",
    re.IGNORECASE,
)
"""Parts of names of models that do not chat."""


def chat_models(models: Iterable[str]) -> list[str]:
    """The same names, first those of models that seem to chat."""
    return sorted(models, key=lambda model: _NO_CHAT.search(model) is not None)
