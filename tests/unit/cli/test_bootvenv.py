"""The installer of `./dev`: which installer it uses, and what it says if there is none."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from cli import bootvenv


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would be run."""
    recorded: list[list[str]] = []
    monkeypatch.setattr(bootvenv, "run", recorded.append)
    return recorded


@pytest.fixture
def _without_ensurepip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python like Debian's without the package python3-venv."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


@pytest.mark.usefixtures("_without_ensurepip")
def test_without_pip_and_uv_one_sentence_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]
) -> None:
    lock = tmp_path / "requirements.lock"
    lock.touch()
    monkeypatch.setattr(bootvenv, "SOURCES", [lock, lock])
    monkeypatch.setattr(bootvenv, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(bootvenv, "STAMP", tmp_path / ".venv" / ".stamp")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(bootvenv.CannotInstall, match=r"install python3-venv .* or uv$"):
        bootvenv.main()
    assert not commands
    assert not (tmp_path / ".venv").exists()


@pytest.mark.usefixtures("_without_ensurepip")
def test_uv_is_enough_where_python_has_no_pip(
    monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/{name}")
    bootvenv.install(bootvenv.find_uv())
    assert [command[:3] for command in commands] == [["/opt/uv", "pip", "install"]] * 2


@pytest.mark.parametrize("uv", [None, "/opt/uv"])
def test_only_packages_with_the_pinned_hashes_are_installed(
    uv: str | None, commands: list[list[str]]
) -> None:
    bootvenv.install(uv)
    installs = [command for command in commands if "install" in command]
    [pins, project] = installs
    assert "--require-hashes" in pins
    assert "--no-deps" in project, "the project itself must not bring packages without hashes"
    assert not [word for command in installs for word in command if "://" in word]
