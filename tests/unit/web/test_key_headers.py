"""A request with its key in another header learns where the key belongs."""

import pytest
from starlette.requests import HTTPConnection

from models.errors import Unauthenticated
from web.http.auth import read_api_key

RIGHT = "Send it in an Authorization header: 'Authorization: Bearer YOUR_KEY'."
CASES = [
    ("/v1/responses", {}, f"You didn't provide an API key. {RIGHT}"),
    (
        "/v1/responses",
        {"api-key": "bb-secret"},
        f"You sent the API key in 'api-key', which this server does not read. {RIGHT}",
    ),
    (
        "/v1/responses",
        {"authorization": "Basic bb-secret", "api-key": "bb-secret"},
        f"You didn't provide an API key. {RIGHT}",
    ),
]


@pytest.mark.parametrize(("path", "headers", "message"), CASES)
def test_a_refusal_says_where_the_key_belongs(
    path: str, headers: dict[str, str], message: str
) -> None:
    scope = {
        "type": "http",
        "path": path,
        "server": ("127.0.0.1", 80),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    with pytest.raises(Unauthenticated) as raised:
        read_api_key(HTTPConnection(scope))
    assert raised.value.message == message


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"x-api-key": " bb-a "}, "bb-a"),
        ({"x-api-key": "bb-a", "authorization": "Bearer bb-b"}, "bb-b"),
    ],
)
def test_anthropics_header_is_read_too(headers: dict[str, str], key: str) -> None:
    scope = {
        "type": "http",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    assert read_api_key(HTTPConnection(scope)) == key
