"""Who only looks at the console sees no path and no query of a URL: it may have a secret."""

from typing import Any

import pytest

from features.console.access import Role, Session
from features.console.page import Visit

_TEXTS = [
    ("https://hooks.example/T0/secret", "https://hooks.example/…"),
    ("https://hooks.example?key=secret", "https://hooks.example/…"),
    ("https://user:secret@host:8443/v1", "https://host:8443/…"),
    ("http://host", "http://host"),
    ("http://host/secret'secret", "http://host/…"),
    (
        "Failed to get 'https://a.b/secret?c=d': HTTP 404.",
        "Failed to get 'https://a.b/…': HTTP 404.",
    ),
    ("(HTTPS://a/secret) http://b/secret.", "(HTTPS://a/…) http://b/…."),
    ("no URL / at all", "no URL / at all"),
]


@pytest.mark.parametrize(("text", "shown"), _TEXTS)
def test_only_operators_see_what_is_behind_the_host(text: str, shown: str) -> None:
    request: Any = None
    reads, acts = (
        Visit(request, Session("token", role, "name"), "/")
        for role in (Role.READ_ONLY, Role.OPERATOR)
    )
    assert (reads.shown(text), acts.shown(text)) == (shown, text)
