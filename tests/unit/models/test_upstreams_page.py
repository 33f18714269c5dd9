"""docs/upstreams.md is correct: its files are valid, and it explains every setting of an
upstream."""

import re
from pathlib import Path

import pytest

from models.config.configuration import build
from models.config.routes import Routes
from models.config.upstream import UpstreamSettings

PAGE = (Path(__file__).parents[3] / "docs" / "upstreams.md").read_text()
FILES = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(FILES)))
def test_a_configuration_file_copied_from_the_page_works(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BACKBURNER_CONFIG", raising=False)
    for variable in re.findall(r'api_key_env = "(\w+)"', FILES[number]):
        monkeypatch.setenv(variable, "a key")
    (tmp_path / "backburner.toml").write_text(FILES[number])
    routes = Routes(build(database_url="postgresql://unused", redis_url="redis://unused"))
    assert next(destination.upstream.name for destination in routes.find("gpt-5")) in (
        "cloud",
        "openai",
    )
    assert len(routes.find("anything")) > 1
    assert {target.upstream for targets in routes.patterns.values() for target in targets} == set(
        routes.upstreams
    )


def test_the_page_has_two_files() -> None:
    assert len(FILES) == 2


def test_every_setting_of_an_upstream_is_explained() -> None:
    settings = set(UpstreamSettings.model_fields) - {"name", "base_url"}
    assert {name for name in settings if f"`{name}`" not in PAGE} == set()


def test_every_value_of_a_dialect_setting_is_explained() -> None:
    for name in (
        "max_tokens_field",
        "developer_role",
        "effort_field",
        "reasoning_back",
        "structured_output",
        "count",
        "api",
    ):
        values = set(re.findall(r"'([\w.]+)'", str(UpstreamSettings.model_fields[name].annotation)))
        assert values
        assert {
            value for value in values if f"`{value}`" not in PAGE and f'"{value}"' not in PAGE
        } == set(), name
