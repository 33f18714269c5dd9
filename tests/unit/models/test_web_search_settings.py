"""The settings of the web search provider."""

import pytest
from pydantic import SecretStr, ValidationError

from models.config.groups import WebSearchSettings


@pytest.mark.parametrize(
    ("settings", "message"),
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
def test_settings_that_cannot_work_are_refused_at_start(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ValidationError, match=message.replace("(", r"\(")):
        WebSearchSettings.model_validate(settings)


def test_settings_that_can_work_are_accepted() -> None:
    assert WebSearchSettings().provider is None
    for settings in (
        {"provider": "tavily", "api_key": "k"},
        {"provider": "brave", "api_key": "k", "base_url": "https://proxy.example/brave"},
        {"provider": "searxng", "base_url": "http://searxng:8080"},
        {"provider": "searxng", "base_url": "http://[::1]:8080/search-me/"},
    ):
        assert WebSearchSettings.model_validate(settings).provider == settings["provider"]


def test_the_key_is_not_shown() -> None:
    settings = WebSearchSettings(provider="tavily", api_key=SecretStr("canary"))
    assert "canary" not in f"{settings} {settings!r}"
