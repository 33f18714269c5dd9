"""The installer of `./dev`: which installer it uses, and what it says if there is none."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from cli import bootvenv


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would be run."""
    recorded: list[list[str]] = []
    monkeypatch.setattr(bootvenv, "run", lambda commands, *_: recorded.extend(commands))
    monkeypatch.setattr(bootvenv, "write_links", lambda: None)
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
    monkeypatch.setattr(bootvenv, "LOCKS", {kind: [lock] for kind in bootvenv.LOCKS})
    monkeypatch.setattr(bootvenv, "SOURCES", {kind: [lock] for kind in bootvenv.SOURCES})
    monkeypatch.setattr(bootvenv, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(bootvenv, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    stamps = dict.fromkeys(bootvenv.STAMPS, tmp_path / ".venv" / ".stamp")
    monkeypatch.setattr(bootvenv, "STAMPS", stamps)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(bootvenv.CannotInstall, match=r"install python3-venv .* or uv$"):
        bootvenv.main(bootvenv.RUNNING)
    assert not commands
    assert not (tmp_path / ".venv").exists()


@pytest.mark.usefixtures("_without_ensurepip")
def test_uv_is_enough_where_python_has_no_pip(
    monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/{name}")
    bootvenv.install(bootvenv.DEVELOPMENT, bootvenv.find_uv())
    assert [command[:3] for command in commands] == [["/opt/uv", "pip", "install"]] * 2


@pytest.mark.parametrize("uv", [None, "/opt/uv"])
@pytest.mark.parametrize("kind", [bootvenv.RUNNING, bootvenv.DEVELOPMENT])
def test_only_packages_with_the_pinned_hashes_are_installed(
    kind: str, uv: str | None, commands: list[list[str]]
) -> None:
    bootvenv.install(kind, uv)
    installs = [command for command in commands if "install" in command]
    parts = 1 if uv is not None else bootvenv.PIPS
    assert all("--require-hashes" in command for command in installs[:parts])
    assert len(installs) == parts + (kind == bootvenv.DEVELOPMENT)
    assert all("--no-deps" in command for command in installs), "no packages without hashes"
    assert not [word for command in installs for word in command if "://" in word]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with locks and no installation."""
    locks = {kind: [tmp_path / f"{kind}.lock"] for kind in bootvenv.LOCKS}
    for [lock] in locks.values():
        lock.touch()
    monkeypatch.setattr(bootvenv, "LOCKS", locks)
    monkeypatch.setattr(bootvenv, "SOURCES", locks)
    stamps = {kind: tmp_path / f"{kind}.stamp" for kind in bootvenv.STAMPS}
    monkeypatch.setattr(bootvenv, "STAMPS", stamps)
    return tmp_path


def test_tools_for_tests_are_missing_after_up_and_nothing_is_missing_after_them(
    place: Path,
) -> None:
    (place / "running.stamp").touch()
    assert bootvenv.is_current(bootvenv.RUNNING)
    assert not bootvenv.is_current(bootvenv.DEVELOPMENT)
    (place / "running.stamp").unlink()
    (place / "development.stamp").touch()
    assert bootvenv.is_current(bootvenv.RUNNING)
    assert bootvenv.is_current(bootvenv.DEVELOPMENT)


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
    capfd: pytest.CaptureFixture[str], line: str, reason: str
) -> None:
    fine = [sys.executable, "-c", "print('Collecting aiohttp')"]
    command = [sys.executable, "-c", f"print({line!r}); raise SystemExit(1)"]
    with pytest.raises(bootvenv.CannotInstall, match=reason):
        bootvenv.run([command, fine, fine], "packages", 92)
    assert capfd.readouterr().err.splitlines()[-1].startswith("  packages: 2 of 92, ")


def test_progress_counts_packages_and_megabytes() -> None:
    progress = bootvenv.Progress("packages", 92)
    for line in (
        "Collecting aiohttp==3.14.5 (from -r requirements.lock (line 7))",
        "Downloading aiohttp-3.14.5-cp311.whl (1.5 MB)",
        "Collecting vine==5.1.0 (from -r requirements.lock (line 9))",
        "Downloading vine-5.1.0-py3-none-any.whl (500 kB)",
    ):
        progress.read(line)
    assert progress.text(7.2) == "  packages: 2 of 92, 2 MB, 7 s"
    progress.read("Installing collected packages: aiohttp, vine")
    assert progress.text(9) == "  packages: 2 of 92, 2 MB, installing, 9 s"


def test_the_parts_of_a_list_have_each_package_once_with_its_hashes(tmp_path: Path) -> None:
    pins = bootvenv.read_pins(bootvenv.LOCKS[bootvenv.RUNNING])
    assert len(pins) > 80
    assert all("--hash=sha256:" in pin for pin in pins)
    parts = [part.read_text() for part in bootvenv.write_parts(pins, 4, tmp_path)]
    assert sorted("".join(parts).splitlines()) == sorted("\n".join(pins).splitlines())
