"""A file is read by a process of its own: within its limits, without this one's secrets, and never
longer than anybody waits for it."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from features.retrieval.extract import extraction
from features.retrieval.extract.child_protocol import ExtractionFailed, ExtractionLimits
from features.retrieval.extract.extraction import extract
from tests.support import files_to_read as files
from tests.support.hostile_files import reading_processes

MIB = 1024 * 1024
TIGHT = ExtractionLimits(memory=128 * MIB, cpu_time=1, time=30, text=MIB, unpacked=16 * MIB)


class FileOf:
    """Writes the content of the test's file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, content: bytes) -> Path:
        self._path.write_bytes(content)
        return self._path


@pytest.fixture
def file_of(tmp_path: Path) -> FileOf:
    return FileOf(tmp_path / "file")


@asynccontextmanager
async def reading(
    path: Path, name: str, limits: ExtractionLimits
) -> AsyncIterator[AsyncIterator[str]]:
    with path.open("rb") as file:
        async with extract(file, name, limits) as pieces:
            yield pieces


async def text_of(path: Path, name: str, limits: ExtractionLimits = TIGHT) -> str:
    async with reading(path, name, limits) as pieces:
        return "".join([piece async for piece in pieces])


async def failure_of(path: Path, name: str, limits: ExtractionLimits = TIGHT) -> ExtractionFailed:
    with pytest.raises(ExtractionFailed) as failure:
        await text_of(path, name, limits)
    assert str(path) not in failure.value.message
    assert not reading_processes()
    return failure.value


async def test_a_long_text_comes_in_small_pieces(file_of: FileOf) -> None:
    text = "".join(f"line {n}: héllo\n" for n in range(20_000))
    path = file_of(text.encode())
    async with reading(path, "log.txt", TIGHT) as pieces:
        parts = [piece async for piece in pieces]
    assert "".join(parts) == text
    assert max(len(part.encode()) for part in parts) <= 64 * 1024
    assert not reading_processes()


async def test_a_file_whose_limit_is_memory(file_of: FileOf) -> None:
    path = file_of(files.xlsx(files.cell("a" * 30 * MIB)))
    failure = await failure_of(path, "a.xlsx", ExtractionLimits(memory=80 * MIB))
    assert (failure.code, failure.message) == (
        "invalid_file",
        "The file could not be parsed because that needs too much memory.",
    )


async def test_a_file_whose_limit_is_cpu_time(file_of: FileOf) -> None:
    path = file_of(files.slow_page())
    failure = await failure_of(path, "page.pdf", ExtractionLimits(cpu_time=1))
    assert failure.message == "The file could not be parsed because that takes too long."
    assert failure.code == "invalid_file"


async def test_a_file_whose_limit_is_the_time_that_is_waited(file_of: FileOf) -> None:
    path = file_of(files.slow_page())
    failure = await failure_of(path, "page.pdf", ExtractionLimits(time=0.3))
    assert failure.message == "The file could not be parsed because that takes too long."


async def test_the_process_ends_when_the_reader_is_cancelled(file_of: FileOf) -> None:
    path = file_of(b"text\n" * MIB)
    began = asyncio.Event()

    async def read() -> None:
        async with reading(path, "a.txt", ExtractionLimits()) as pieces:
            async for _ in pieces:
                began.set()
                await asyncio.sleep(60)

    reader = asyncio.create_task(read())
    await began.wait()
    assert reading_processes()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert not reading_processes()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
async def test_the_process_ends_with_its_worker(file_of: FileOf) -> None:
    path = file_of(b"text\n" * MIB)
    program = (
        "import asyncio, sys\n"
        "from features.retrieval.extract.child_protocol import ExtractionLimits\n"
        "from features.retrieval.extract.extraction import extract\n"
        "async def main():\n"
        "    async with extract(open(sys.argv[1], 'rb'), 'a.txt', ExtractionLimits()) as pieces:\n"
        "        print(len(await anext(pieces)), flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(path)), stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"16000\n"
    [child] = psutil.Process(worker.pid).children()
    worker.kill()
    await worker.wait()
    await asyncio.to_thread(psutil.wait_procs, [child], 20)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


async def test_a_process_that_was_killed_is_no_fault_of_the_file(file_of: FileOf) -> None:
    path = file_of(b"text\n" * MIB)

    async def read() -> None:
        async with reading(path, "a.txt", ExtractionLimits()) as pieces:
            await anext(pieces)
            [child] = reading_processes()
            child.kill()
            async for _ in pieces:
                pass

    with pytest.raises(ExtractionFailed) as failure:
        await read()
    assert failure.value.code == "server_error"
    assert "status -9" in failure.value.cause


async def test_an_installation_that_is_not_complete_is_no_fault_of_the_file(
    file_of: FileOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "_CHILD", "features.retrieval.extract.missing")
    failure = await failure_of(file_of(b"text"), "a.txt")
    assert failure.code == "server_error"
    assert "No module named features.retrieval.extract.missing" in failure.cause


async def test_the_process_imports_little() -> None:
    program = (
        "import sys\nimport features.retrieval.extract.child, features.retrieval.extract.reading\n"
        "print(*sys.modules)"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-P", "-c", program),
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    output, _ = await process.communicate()
    modules = set(output.decode().split())
    assert "features.retrieval.extract.child" in modules
    assert not modules & {"asyncio", "pydantic", "structlog", "typing_extensions", "ssl"}
