"""What a sandbox promises workers (features/code/sandbox/server.py)."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from features.code import commands
from tests.integration.code.sandbox.conftest import Session, SessionOpener
from tests.support.api import until
from tests.support.sandboxes import running_sandbox

ONE_MODE = pytest.mark.parametrize("sandbox", ["no capability"], indirect=True, scope="session")


@ONE_MODE
async def test_variables_stay_and_the_last_value_is_shown(session: Session) -> None:
    assert (await session.python("x = 20\nx"))["value"] == "20"
    result = await session.python("import sys\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
    assert (result["value"], result["stdout"], result["stderr"]) == ("21", "out\n", "err\n")
    failed = await session.python("def f():\n    return 1 / 0\nf()")
    assert failed["status"] == "error"
    assert failed["error"].splitlines()[1] == '  File "<cell>", line 3, in <module>'
    assert "child.py" not in failed["error"]


@ONE_MODE
async def test_commands_have_outputs_codes_and_times_of_their_own(session: Session) -> None:
    outputs = await session.shell(
        *("echo a; echo b >&2; exit 3", "sleep 60 | cat", "kill -9 $$", "pwd"), timeout_ms=300
    )
    assert outputs[0] == {"stdout": "a\n", "stderr": "b\n", "exit_code": 3}
    assert [each["exit_code"] for each in outputs] == [3, None, 137, 0]
    assert outputs[3]["stdout"] == "/mnt/data\n"
    [cut] = await session.shell("seq 1000", max_output_length=50)
    assert cut["stdout"].startswith("1\n2\n")
    assert cut["stdout"].endswith("999\n1000\n")
    assert len(cut["stdout"]) < 70


@ONE_MODE
async def test_files_go_in_and_out_below_mnt_data(session: Session) -> None:
    url = f"{session.path}/files"
    await session.sandbox.call("PUT", f"{url}/in/a.csv", data=b"1,2\n")
    code = "t = open('/mnt/data/in/a.csv').read()\nopen('/mnt/data/out.txt', 'w').write(t * 2)"
    result = await session.python(code)
    assert result["changed"] == [{"path": "out.txt", "bytes": 8, "figure": False}]
    assert await session.sandbox.call("GET", f"{url}/out.txt") == b"1,2\n1,2\n"
    [listed] = await session.shell("ls /mnt/data/in; rm -r in")
    assert listed["stdout"] == "a.csv\n"
    assert (await session.python("1"))["deleted"] == []
    assert await session.sandbox.call("GET", f"{url}/in/a.csv") == 409
    big = await session.sandbox.call("PUT", f"{url}/big", data=_megabytes(101))
    assert big == 413
    assert (await session.python("1"))["status"] == "ok"


async def _megabytes(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield bytes(1 << 20)


@pytest.mark.parametrize("sandbox", ["no capability", "own users"], indirect=True, scope="session")
async def test_the_folder_is_at_mnt_data_however_its_name_is_made(session: Session) -> None:
    code = """
import os, pathlib
name = pathlib.Path("/") / "mnt" / "data" / "a.txt"
name.write_text(os.getcwd())
"""
    result = await session.python(code)
    assert [each["path"] for each in result["changed"]] == ["a.txt"], result
    assert (await session.shell("d=data; cat /mnt/$d/a.txt; ls /mnt"))[0]["stdout"] == "/mnt/data"


@ONE_MODE
async def test_a_cell_runs_once_and_its_result_waits_for_an_acknowledgement(
    session: Session,
) -> None:
    call = session.sandbox.call
    await session.python("n = 0")
    body = {"kind": "python", "code": "import time; time.sleep(0.3); n += 1\nn"}
    path = f"{session.path}/cells/once"
    for _ in range(3):
        await call("PUT", path, json=body)
    answers = await asyncio.gather(*(call("GET", f"{path}?wait=30") for _ in range(2)))
    assert [each["result"]["value"] for each in answers] == ["1", "1"]
    await call("PUT", path, json=body)
    assert (await call("GET", path))["result"]["value"] == "1"
    await call("DELETE", path)
    assert await call("GET", path) == 404
    assert await call("PUT", path, json=body) == 410
    assert (await session.python("n"))["value"] == "1"


@ONE_MODE
async def test_cells_that_do_not_make_sense_are_refused(session: Session) -> None:
    path = f"{session.path}/cells/ci_x"
    assert await session.sandbox.call("PUT", path, data=b"{") == 400
    assert await session.sandbox.call("PUT", path, json={"kind": "ruby"}) == 400
    assert await session.sandbox.call("GET", path) == 404
    assert await session.sandbox.call("GET", "/sessions/none") == 404
    assert await session.sandbox.call("GET", "/healthz") == {}


@ONE_MODE
async def test_a_running_cell_is_not_idle_and_a_closed_session_is_lost(
    open_session: SessionOpener,
) -> None:
    session = await open_session()
    cell = await session.begin({"kind": "python", "code": "import time; time.sleep(60)"})
    await session.sandbox.call("DELETE", session.path)
    assert await session.sandbox.call("GET", cell) == 404

    async def is_gone() -> bool:
        return not session.folder.exists()

    await until(is_gone, 10)


async def test_a_full_sandbox_ends_the_idle_session_of_who_has_most(tmp_path: Path) -> None:
    async with running_sandbox(tmp_path, secrets.token_hex(16), "--sessions", "3") as sandbox:

        async def opened(project: str) -> str:
            answer = await sandbox.call("POST", "/sessions", json={"project": project})
            return f"/sessions/{answer['session']}"

        one = await opened("one")
        many = [await opened("many"), await opened("many")]
        status = {"sessions": 2, "max_sessions": 3}
        found = await sandbox.call("GET", "/status")
        assert {name: found[name] for name in status} == status
        new = await opened("new")
        assert await sandbox.call("GET", many[0]) == 404
        for each in (one, many[1], new):
            body = {"kind": "python", "code": "1"}
            await sandbox.call("PUT", f"{each}/cells/c", json=body)
            await sandbox.call("GET", f"{each}/cells/c?wait=30")
        assert await sandbox.call("POST", "/sessions", json={}) == 503
        assert (await sandbox.call("GET", "/status"))["sessions"] == 3
        await sandbox.call("DELETE", f"{one}/cells/c")
        await opened("new")
        assert await sandbox.call("GET", one) == 404


def _printed(folder: Path) -> str:
    return "".join(each.read_text().strip() for each in folder.glob("sessions/*/out/stdout"))


async def test_a_session_that_starts_gives_way_to_no_other(tmp_path: Path) -> None:
    async with running_sandbox(tmp_path, secrets.token_hex(16), "--sessions", "1") as sandbox:
        calls = (sandbox.call("POST", "/sessions", json={}) for _ in range(4))
        answers = await asyncio.gather(*calls)
        [opened] = (each for each in answers if type(each) is dict)
        assert answers.count(503) == 3
        assert type(await sandbox.call("GET", f"/sessions/{opened['session']}")) is dict


async def test_unused_sessions_end_and_code_ends_with_its_sandbox(tmp_path: Path) -> None:
    token = secrets.token_hex(16)
    async with running_sandbox(tmp_path, token, "--idle-time", "1") as sandbox:
        answer = await sandbox.call("POST", "/sessions", json={"container": "ab" * 16})
        folder = tmp_path / "sessions" / ("ab" * 16)

        async def is_gone() -> bool:
            return not folder.exists()

        await until(is_gone, 15)
        assert await sandbox.call("GET", f"/sessions/{answer['session']}") == 404
        answer = await sandbox.call("POST", "/sessions", json={})
        path = f"/sessions/{answer['session']}/cells/c"
        code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
        await sandbox.call("PUT", path, json={"kind": "python", "code": code})

        async def has_printed() -> bool:
            return bool(_printed(tmp_path))

        await until(has_printed, 15)
        pid = _printed(tmp_path)
        sandbox.kill()

        async def has_ended() -> bool:
            return not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240, PTH110 - short

        await until(has_ended, 10)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "BACKBURNER_CODE__TOKEN must have at least 16 characters"),
        ({"BACKBURNER_CODE__TOKEN": "short"}, "at least 16 characters"),
        ({"DATABASE_URL": "postgresql://u:hidden@h/d"}, "do not give it DATABASE_URL"),
        ({"BACKBURNER_UPSTREAM__API_KEY": "hidden"}, "do not give it BACKBURNER_UPSTREAM__API_KEY"),
    ],
)
def test_a_sandbox_that_got_a_secret_does_not_start(
    environment: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", environment)
    done = CliRunner().invoke(commands.app, ["--port", "1"])
    assert done.exit_code == 1
    assert words in done.output
    assert len(done.output.splitlines()) == 1
    assert "hidden" not in done.output
