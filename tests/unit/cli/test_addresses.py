"""The addresses that commands read without pydantic are those that web and workers read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cli import addresses
from cli.errors import CommandFailed
from models.config.config_file import BadSettings
from models.config.configuration import build

DSN = "postgresql://user:secret@db/one"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "REDIS_URL", "BACKBURNER_CONFIG", "BACKBURNER_DATABASE_SCHEMA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "file"),
    [
        ({"DATABASE_URL": "postgres://user:secret@db/one", "REDIS_URL": "redis://r/0"}, ""),
        ({"database_url": DSN, "redis_url": "sentinel://s/0?master=m"}, ""),
        ({}, f'database_url = "{DSN}"\nredis_url = "unix:///r"\ndatabase_schema = "mine"'),
        ({}, 'DATABASE_URL = "postgresql+psycopg://user:secret@db/one"\nREDIS_URL = "rediss://r"'),
        (
            {"DATABASE_URL": DSN, "REDIS_URL": "redis://r", "backburner_database_schema": "other"},
            'database_url = "postgresql://file"\ndatabase_schema = "mine"',
        ),
    ],
)
def test_commands_use_the_servers_of_web_and_workers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], file: str
) -> None:
    (folder / "backburner.toml").write_text(file)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = build()
    assert (
        (addresses.database_url(), addresses.redis_url(), addresses.database_schema())
        == (settings.dsn, settings.redis_url.get_secret_value(), settings.database_schema)
        == (DSN, settings.redis_url.get_secret_value(), addresses.database_schema())
    )


def test_nothing_is_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    assert (addresses.database_url(), addresses.redis_url(), addresses.database_schema()) == (
        None,
        None,
        "backburner",
    )


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("DATABASE_URL", "mysql://secret", addresses.database_url),
        ("BACKBURNER_DATABASE_SCHEMA", "pg_secret", addresses.database_schema),
    ],
)
def test_a_wrong_value_is_one_sentence_without_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, read: Callable[[], object]
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(CommandFailed, match=f"{name}: must ") as failure:
        read()
    assert "secret" not in str(failure.value)


def test_a_file_that_is_not_toml_is_named_with_its_line(folder: Path) -> None:
    (folder / "backburner.toml").write_text("a = 1\nb =")
    with pytest.raises(BadSettings, match="line 2"):
        addresses.database_url()
