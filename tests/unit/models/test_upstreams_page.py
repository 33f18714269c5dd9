"""docs/upstreams.md is correct: its files are valid, and it has every preset."""

import re
from pathlib import Path

import pytest

from models.config.config_file import BadSettings
from models.config.configuration import build
from models.config.dialect import PRESETS
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


def test_the_page_names_every_preset() -> None:
    part = PAGE.partition("### Presets\n")[2].partition("\n### ")[0]
    lists = [line for line in part.splitlines() if line.startswith("- ")]
    assert {name for line in lists for name in re.findall(r"`([a-z-]+)`", line)} == set(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_field_of_a_preset_is_a_setting_with_a_valid_value(preset: str) -> None:
    upstream = UpstreamSettings.model_validate({"preset": preset})
    assert upstream == UpstreamSettings.model_validate({"preset": preset, **PRESETS[preset]})
    assert set(PRESETS[preset]) < set(UpstreamSettings.model_fields) - {"base_url", "api_key"}


def test_own_settings_override_those_of_the_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BACKBURNER_CONFIG", raising=False)
    (tmp_path / "backburner.toml").write_text(
        '[upstreams.one]\nbase_url = "http://one/v1"\npreset = "mistral"\nalternate_roles = false\n'
    )
    monkeypatch.setenv("BACKBURNER_UPSTREAMS__ONE__CALL_CONTENT", "omitted")
    settings = build(database_url="postgresql://unused", redis_url="redis://unused")
    one = settings.upstreams["one"]
    assert (one.max_tokens_field, one.alternate_roles, one.call_content) == (
        "max_tokens",
        False,
        "omitted",
    )
    monkeypatch.setenv("BACKBURNER_UPSTREAMS__ONE__PRESET", "mistrall")
    with pytest.raises(BadSettings, match="ONE__PRESET: there is no preset 'mistrall'"):
        build(database_url="postgresql://unused", redis_url="redis://unused")
    monkeypatch.setenv("BACKBURNER_UPSTREAMS__ONE__PRESET", "")
    monkeypatch.setenv("BACKBURNER_UPSTREAMS__ONE__OMIT", "messages,stream")
    with pytest.raises(BadSettings, match="no request is possible without messages, stream"):
        build(database_url="postgresql://unused", redis_url="redis://unused")
