"""REDIS_URL: a server, or Sentinels."""

import pytest

from models.config.settings import Settings
from models.config.values import SentinelAddress
from models.redis.client import broker_of


def _settings(redis_url: str) -> Settings:
    return Settings(database_url="postgresql://unused", redis_url=redis_url)


def test_a_url_of_sentinels_names_all_of_them_and_the_primary() -> None:
    address = SentinelAddress.parse(
        "sentinel://user:p%40ss@one,two:26380,[::1]:26381/3?master=main&sentinel_password=other"
    )
    assert address == SentinelAddress(
        sentinels=(("one", 26379), ("two", 26380), ("::1", 26381)),
        master="main",
        database=3,
        username="user",
        password="p@ss",
        sentinel_password="other",
    )


def test_celery_gets_a_url_for_each_sentinel() -> None:
    url, options = broker_of(_settings("sentinel://:p%40ss@one,two:26380/3?master=main"))
    assert url == "sentinel://:p%40ss@one:26379/3;sentinel://:p%40ss@two:26380/3"
    assert options["master_name"] == "main"


def test_another_url_is_passed_on() -> None:
    assert broker_of(_settings("redis://:x@host/0")) == ("redis://:x@host/0", {})


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://:secret@one:26379/0",
        "sentinel://:secret@one:26379/zero?master=main",
        "sentinel://:secret@/0?master=main",
        "sentinel://:secret@one/0?master=main&mastre=main",
        "http://:secret@one/0",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)redis_url") as refused:
        _settings(url)
    assert "secret" not in str(refused.value)
