"""The installer of `./dev`: which installer it uses, and what it says if there is none."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

from cli import bootvenv


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with locks and no installation."""
    for lock in (name for names in bootvenv.LOCKS.values() for name in names):
        shutil.copy(bootvenv.ROOT / lock, tmp_path / lock)
    return tmp_path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str]]:
    """The commands that would be run, with the requirements that they would install."""
    recorded: list[tuple[list[str], str]] = []

    def record(command: list[str], _place: Path) -> None:
        recorded.append((command, Path(command[-1]).read_text() if "-r" in command else ""))

    monkeypatch.setattr(bootvenv, "run", record)
    return recorded


def test_without_ensurepip_and_uv_one_sentence_names_what_to_install(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, commands: list[tuple[list[str], str]]
) -> None:
    """As with Debian's Python without the package python3-venv."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(bootvenv.CannotInstall, match=r"install python3-venv .* or uv$"):
        bootvenv.main(checkout, bootvenv.RUNNING)
    assert not commands
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("uv", [None, "/opt/uv"])
@pytest.mark.parametrize("kind", [bootvenv.RUNNING, bootvenv.DEVELOPMENT])
def test_only_packages_with_the_pinned_hashes_are_installed_and_only_once(
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    commands: list[tuple[list[str], str]],
    kind: str,
    uv: str | None,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: uv)
    bootvenv.main(checkout, kind)
    installs = [command for command in commands if "install" in command[0]]
    assert all({"--require-hashes", "--no-deps"} <= set(command) for command, _ in installs)
    assert not [word for command, _ in installs for word in command if "://" in word]
    assert (len(installs) == 1) == (uv is not None)
    pins = bootvenv.read_pins(checkout, kind)
    assert len(pins) > 80
    assert all("--hash=sha256:" in pin for pin in pins)
    installed = "".join(requirements for _, requirements in installs)
    assert sorted(installed.splitlines()) == sorted("\n".join(pins).splitlines())
    # Neither is missing after everything was installed; tools for tests are missing after `up`.
    assert bootvenv.is_current(checkout, bootvenv.RUNNING)
    assert bootvenv.is_current(checkout, bootvenv.DEVELOPMENT) == (kind == bootvenv.DEVELOPMENT)
    commands.clear()
    bootvenv.main(checkout, kind)
    assert not commands


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
         "the disk is full"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError(...)'",
         "the package index does not answer"),
        ("  x Failed to fetch: `https://index.example/simple/`: dns error",
         "the package index does not answer"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
         "another file than the pinned one"),
    ],
)  # fmt: skip
def test_a_failed_installation_is_one_sentence_with_the_remedy(
    tmp_path: Path, line: str, reason: str
) -> None:
    command = [sys.executable, "-c", f"print({line!r}); raise SystemExit(1)"]
    with pytest.raises(bootvenv.CannotInstall, match=re.escape(reason)):
        bootvenv.install_parts(command, ["a", "b", "c"], 1, tmp_path)


def test_progress_counts_packages(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", "print('Collecting aiohttp')"]
    bootvenv.install_parts(command, ["a", "b", "c"], 2, tmp_path)
    assert capfd.readouterr().err.splitlines()[-1] == "  3 of 3 packages"
