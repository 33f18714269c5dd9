"""Which search provider is asked, and what must be known of it."""

import pytest
from pydantic import SecretStr, ValidationError

from models.config.settings import WebSearchSettings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"provider": "google"}, "Input should be 'tavily', 'brave' or 'searxng'"),
        ({"provider": "searxng"}, "must name the SearXNG instance"),
        ({"provider": "tavily"}, "web_search.api_key must be set for tavily"),
        ({"provider": "brave", "base_url": "http://x"}, "web_search.api_key must be set for brave"),
        *(
            ({"provider": "searxng", "base_url": url}, "must be an http:// or https:// address")
            for url in (
                "x",
                "ftp://x",
                "http://",
                "http://user:word@x",
                "http://x?q=1",
                "http://x/#a",
                "http://x /",
                "http://x\\y",
                "//x",
            )
        ),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("(", r"\(")):
        WebSearchSettings.model_validate(given)


def test_what_can_work_is_taken() -> None:
    assert WebSearchSettings().provider is None
    for given in (
        {"provider": "tavily", "api_key": "k"},
        {"provider": "brave", "api_key": "k", "base_url": "https://proxy.example/brave"},
        {"provider": "searxng", "base_url": "http://searxng:8080"},
        {"provider": "searxng", "base_url": "http://[::1]:8080/search-me/"},
    ):
        assert WebSearchSettings.model_validate(given).provider == given["provider"]


def test_the_key_is_not_shown() -> None:
    settings = WebSearchSettings(provider="tavily", api_key=SecretStr("canary"))
    assert "canary" not in f"{settings} {settings!r}"
