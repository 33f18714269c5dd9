"""The snippets of the pages on files, batches, proxied endpoints, vector stores and messages, run
unchanged. The pages on clients and webhooks have tests of their own."""

import asyncio
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.fake_upstream import FakeUpstream, begin_body, raw, status
from tests.support.files_to_read import pages_with_text
from tests.support.stack import ROOT, Stack

PAGES = ("files", "batches", "proxied-endpoints", "vector-stores", "messages")
TIDES = "The tides of the sea are made by the moon. Spring tides come twice a month."
PRINTED = (
    "You said: Hello, Backburner! end_turn",
    *("requests.jsonl", "completed file-", "You said: What does it say?"),
    *("completed None", "bread.md Bread is made of flour"),
    "bread.md says: Bread is made of flour and water.",
    f"tides.pdf says: {TIDES}\n[('tides.pdf', 118)]",
    *(f"city-{number} [Backburner demo upstream] You said: Describe" for number in range(3)),
)
RUN_ALL = "import runpy, sys; [runpy.run_path(program) for program in sys.argv[1:]]"
AUDIO = b"\xff\xfb" + bytes(1000)


def snippets(page: str, language: str) -> list[str]:
    """The blocks of a page."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found
    return found


@pytest.fixture
def environment(tool_stack: Stack, fake: FakeUpstream, tmp_path: Path) -> dict[str, str]:
    """The variables of the snippets. Also makes the files and models that they use."""
    request = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"input": "Hi"}}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request) + "\n")
    (tmp_path / "report.txt").write_text("Nothing has happened. " * 20)
    (tmp_path / "report.pdf").write_bytes(b"%PDF-1.7 with nothing on its pages")
    (tmp_path / "talk.mp3").write_bytes(AUDIO)
    (tmp_path / "tides.pdf").write_bytes(pages_with_text([TIDES]))
    vectors = [{"object": "embedding", "index": each, "embedding": [0.5]} for each in (0, 1)]
    fake.script([status(200, {"object": "list", "data": vectors})], name="embedder")
    fake.script([status(200, {"text": "Hello."})], name="whisper")
    fake.script([begin_body("audio/mpeg"), raw(AUDIO)], name="speaker")
    return {
        **os.environ,  # noqa: TID251  (of the child)
        "OPENAI_BASE_URL": tool_stack.api().base_url,
        "OPENAI_API_KEY": tool_stack.key,
    }


async def _run(folder: Path, environment: dict[str, str], *command: str) -> str:
    program = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(90):
        printed, complaints = await program.communicate()
    assert program.returncode == 0, complaints.decode()[-3000:]
    return printed.decode()


async def test_the_programs_of_the_pages_print_what_they_show(
    environment: dict[str, str], tmp_path: Path
) -> None:
    programs = []
    for page in PAGES:
        for number, snippet in enumerate(snippets(page, "python")):
            programs.append(f"{page}-{number}.py")
            (tmp_path / programs[-1]).write_text(snippet)
    printed = await _run(tmp_path, environment, sys.executable, "-c", RUN_ALL, *programs)
    for expected in PRINTED:
        assert expected in printed, printed
    assert (tmp_path / "hello.mp3").read_bytes() == AUDIO


async def test_the_commands_of_the_page_on_files_store_a_file_and_read_a_range(
    environment: dict[str, str], tmp_path: Path, tool_stack: Stack
) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    file = await tool_stack.openai().files.create(file=("a.txt", b"abc" * 50), purpose="user_data")
    [block] = snippets("files", "bash")
    printed = await _run(tmp_path, environment | {"FILE": file.id}, "bash", "-ec", block)
    stored, _, content = printed.partition("}")
    assert json.loads(stored + "}")["filename"] == "report.txt"
    assert content == ("abc" * 50)[:100]
