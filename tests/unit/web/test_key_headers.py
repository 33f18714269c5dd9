"""A request with its key in another header learns where the key belongs."""

import pytest
from starlette.requests import HTTPConnection

from models.errors import Unauthenticated
from web.http.auth import read_api_key

RIGHT = "Send it in an Authorization header: 'Authorization: Bearer YOUR_KEY'."
MESSAGES = (
    " This server does not offer this API: use /v1/responses or /v1/chat/completions, with a "
    "client of OpenAI's API."
)
CASES = [
    ("/v1/responses", {}, f"You didn't provide an API key. {RIGHT}"),
    (
        "/v1/responses",
        {"x-api-key": "bb-secret"},
        f"You sent the API key in 'x-api-key', which this server does not read. {RIGHT}",
    ),
    (
        "/v1/responses",
        {"authorization": "Basic bb-secret", "api-key": "bb-secret"},
        f"You didn't provide an API key. {RIGHT}",
    ),
    (
        "/v1/messages",
        {"x-api-key": "bb-secret", "anthropic-version": "2023-06-01"},
        f"You sent the API key in 'x-api-key', which this server does not read. {RIGHT}{MESSAGES}",
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
