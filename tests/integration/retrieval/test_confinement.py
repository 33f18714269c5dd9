"""A file that takes over the process that reads it gains nothing: neither the worker's keys, nor
other files, nor a connection."""

import asyncio
import json
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from features.retrieval.extract import extraction
from features.retrieval.extract.child_protocol import ExtractionFailed, ExtractionLimits
from features.retrieval.extract.extraction import extract
from models.confinement.policy import missing
from tests.support.stack import Stack

pytestmark = pytest.mark.skipif(
    bool(missing()), reason="this system lacks what the confinement is made of"
)


@pytest.fixture(autouse=True)
def _attacker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "_CHILD", "tests.support.confined_attacks")


def _names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


async def outcomes_of(folder: Path, ending: str) -> dict[str, str]:
    """Attack -> what became of it."""
    stored = folder / "stored"
    stored.write_text("another project's")
    for name in ("to-rename", "to-remove"):
        (folder / name).touch()
    (folder / "to-rmdir").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(folder / "unix"))
        unix.listen()
        names = _names(folder)
        targets = {
            "stored": str(stored),
            "folder": str(folder),
            "tcp": tcp.getsockname()[1],
            "unix": str(folder / "unix"),
        }
        content = await asyncio.to_thread(_file_with, json.dumps(targets).encode())
        with os.fdopen(content, "rb") as file:
            async with extract(file, f"a.{ending}", ExtractionLimits()) as pieces:
                found: dict[str, str] = json.loads("".join([piece async for piece in pieces]))
    assert stored.read_text() == "another project's"
    assert _names(folder) == names
    return found


def _file_with(content: bytes) -> int:
    descriptor = os.memfd_create("targets")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def test_every_attack_is_refused(tmp_path: Path) -> None:
    outcomes = await outcomes_of(tmp_path, "attacks")
    # Nothing of this process's environment, which has keys.
    assert outcomes.pop("environment").split() == ["LC_ALL", "PYTHONHASHSEED", "PYTHONPATH"]
    assert len(outcomes) > 80
    assert {
        name: outcome for name, outcome in outcomes.items() if not outcome.startswith("refused")
    } == {}


async def test_without_landlock_nothing_can_be_changed_or_reached(tmp_path: Path) -> None:
    outcomes = await outcomes_of(tmp_path, "landlock")
    del outcomes["environment"]
    done = {name for name, outcome in outcomes.items() if not outcome.startswith("refused")}
    assert {name for name in done if not name.startswith(("read", "list", "follow"))} <= {"DNS"}
    assert "read a stored file" in done


async def test_without_seccomp_no_file_is_read_or_written(tmp_path: Path) -> None:
    outcomes = await outcomes_of(tmp_path, "seccomp")
    refused = {name for name, outcome in outcomes.items() if outcome.startswith("refused")}
    assert {name for name in outcomes if name.startswith(("read", "list", "follow"))} <= refused
    assert {
        *("write the worker's memory", "change a stored file", "empty a stored file"),
        *("make a file", "rename a file", "remove a file", "TCP"),
    } <= refused


async def test_text_without_an_end_is_cut_off() -> None:
    content = await asyncio.to_thread(_file_with, b"{}")
    limits = ExtractionLimits(text=1024 * 1024)
    received: list[str] = []
    with os.fdopen(content, "rb") as file:
        async with extract(file, "a.flood", limits) as pieces:
            with pytest.raises(ExtractionFailed, match="damaged"):
                await _receive(pieces, received)
    assert len("".join(received)) == limits.text


async def _receive(pieces: AsyncIterator[str], received: list[str]) -> None:
    async for piece in pieces:
        received.append(piece)  # noqa: PERF401 - what came before an error counts


_KEEPER_OF_KEYS = """
import os, sys
from models.confinement.kernel import forbid_dumps
from models.confinement.kernel import prctl
if os.getuid() == 0:  # root may read everything
    os.setgid(65534)
    os.setuid(65534)
prctl(4, 1)  # as after a start: the change of the user has forbidden it
if sys.argv[1] == "forbidden":
    forbid_dumps()
if os.fork() == 0:
    for name in ("environ", "mem", "maps", "fd"):
        try:
            path = f"/proc/{os.getppid()}/{name}"
            os.close(os.open(path, os.O_RDONLY))
        except PermissionError:
            print("refused")
        else:
            print("read")
    os._exit(sys.stdout.flush() or 0)
os.wait()
"""


@pytest.mark.parametrize(("argument", "outcome"), [("allowed", "read"), ("forbidden", "refused")])
async def test_no_process_of_the_same_user_reads_keys(argument: str, outcome: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _KEEPER_OF_KEYS, argument), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert output.decode().split() == [outcome] * 4


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 or os.getuid() != 0,
    reason="no process can dump core here, or tests read the memory of others as their user",
)
def test_web_and_workers_forbid_dumps(shared_stack: Stack) -> None:
    for process in (*shared_stack.webs, *shared_stack.workers):
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max core file size")]
        assert line.split()[4:6] == ["0", "0"]
