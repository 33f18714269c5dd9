"""A session that takes too much, does not end or lies about its cells harms no other session."""

import json
from pathlib import Path

import pytest

from tests.integration.code.sandbox.conftest import Session, SessionOpener
from tests.support.api import until
from tests.support.sandboxes import SandboxProcess

pytestmark = pytest.mark.parametrize(
    "sandbox",
    [
        "no capability",
        pytest.param("own users", marks=pytest.mark.long),
        pytest.param("root without own users", marks=pytest.mark.long),
        pytest.param("runsc", marks=pytest.mark.long),
    ],
    indirect=True,
    scope="session",
)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("b = [bytearray(1 << 20) for _ in range(1200)]", "memory"),
        (
            (
                "import os, time\nfor _ in range(4): os.fork()\n"
                "b = bytearray(100 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\n"
                "time.sleep(60)"
            ),
            "memory",
        ),
        ("import os\nopen('big', 'wb').write(bytes(65 << 20))", "error"),
        (
            (
                "import time\nfor n in range(60):\n open(str(n), 'wb').write(bytes(5 << 20))\n"
                "time.sleep(60)"
            ),
            "disk",
        ),
        (
            (
                "import os, time\nkept = []\nfor n in range(60):\n kept.append(open('x', 'wb'))\n"
                " kept[-1].write(bytes(5 << 20)); kept[-1].flush(); os.remove('x')\ntime.sleep(60)"
            ),
            "disk",
        ),
        pytest.param(
            "for n in range(50_000): open(str(n), 'w').close()", "disk", marks=pytest.mark.long
        ),
        (
            "import os, time\nfor _ in range(3000):\n os.mkdir('d'); os.chdir('d')\ntime.sleep(60)",
            "disk",
        ),
    ],
    ids=["memory", "memory-of-all", "file", "disk", "removed-files", "small-files", "deep"],
)
async def test_a_session_that_takes_too_much_is_stopped(
    open_session: SessionOpener, code: str, status: str
) -> None:
    greedy, other = await open_session(), await open_session()
    await other.python("x = 1")
    result = await greedy.python(code)
    assert result["status"] == status, result
    assert (await other.python("x"))["value"] == "1"
    if status == "disk":
        assert await greedy.sandbox.call("GET", greedy.path) == 404
    else:
        assert (await greedy.python("1 + 1"))["value"] == "2"


@pytest.mark.long
async def test_many_processes_do_not_reach_other_sessions(open_session: SessionOpener) -> None:
    greedy, other = await open_session(), await open_session()
    code = """
import os, time
n = 0
try:
    while n < 200:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        n += 1
except OSError:
    pass
time.sleep(5)
"""
    result = await greedy.python(code)
    assert result["status"] in ("ok", "processes", "memory")
    assert (await other.shell("echo $((1 + 1))"))[0]["stdout"] == "2\n"
    left = await greedy.python("import os\nos.getpid()")
    assert left["status"] == "ok"


async def test_what_a_cell_leaves_running_ends_with_it(
    sandbox: SandboxProcess, session: Session
) -> None:
    code = """
import os
open("beat", "w")
if os.fork() == 0:
    if os.fork() == 0:
        while True:
            open("beat", "a").write("x")
    os._exit(0)
"""
    assert (await session.python(code))["status"] == "ok"
    read = "import os, time\na = os.path.getsize('beat'); time.sleep(0.2)\n"
    assert (await session.python(read + "os.path.getsize('beat') - a"))["value"] == "0"


async def test_threads_stand_still_between_cells(sandbox: SandboxProcess, session: Session) -> None:
    code = """
import threading
count = 0
def run():
    global count
    while True:
        count += 1
threading.Thread(target=run, daemon=True).start()
"""
    if "runsc" in sandbox.command:
        pytest.skip("the process of the code is none of the system")
    await session.python(code)
    pid = (await session.python("import os\nos.getpid()"))["value"]

    async def is_stopped() -> bool:
        return _state_of(pid) == "T"

    await until(is_stopped, 5)


def _state_of(pid: str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["loop", "no-interrupt", "stopped"],
)
async def test_code_without_an_end_can_be_interrupted(session: Session, code: str) -> None:
    cell = await session.begin({"kind": "python", "code": code})
    assert (await session.sandbox.call("GET", f"{cell}?wait=0.5"))["state"] == "running"
    await session.sandbox.call("DELETE", cell)
    assert (await session.python("1 + 1"))["value"] == "2"


@pytest.mark.parametrize("kind", ["python", pytest.param("shell", marks=pytest.mark.long)])
async def test_a_cell_that_computes_too_much_is_stopped(session: Session, kind: str) -> None:
    loop = "import os\nos.fork()\nwhile True: pass"
    body = {"code": loop, "commands": ["while true; do :; done | while true; do :; done"]}
    result = await session.cell({"kind": kind, **body})
    assert result["status"] == "cpu"
    assert result["cpu_ms"] > 1500
    assert (await session.python("1 + 1"))["value"] == "2"


async def test_the_sandbox_says_what_a_session_uses(session: Session) -> None:
    await session.python("b = b'x' * (64 << 20)\nopen('a', 'wb').write(b[:1 << 20])")
    use = await session.sandbox.call("GET", session.path)
    assert 64 << 20 < use["memory_bytes"] < 200 << 20
    assert use["memory_limit_bytes"] == 256 << 20
    assert (await session.sandbox.call("GET", "/status"))["memory_bytes"] >= use["memory_bytes"]


async def test_code_cannot_close_the_channel_but_can_end_its_process(session: Session) -> None:
    assert (await session.python("import os\nos.closerange(3, 256)"))["status"] == "ok"
    assert (await session.python("1 + 1"))["value"] == "2"
    assert (await session.python("import os\nos._exit(0)"))["status"] == "died"
    assert (await session.python("1 + 1"))["value"] == "2"


@pytest.mark.parametrize(
    "written",
    [
        """'{"status": "ok", "value": "forged"}'""",
        "'[' * 100_000",
        """'{"nonce": "0"}' + '\\n{}' * 100_000""",
        "'x' * (8 << 20)",
        """'{"figures": 1, "outputs": {"a": 1}, "value": 7, "status": []}'""",
    ],
    ids=["answer", "nested", "lines", "long", "types"],
)
async def test_a_forged_answer_harms_nobody_else(open_session: SessionOpener, written: str) -> None:
    forger, other = await open_session(), await open_session()
    code = f"""
import os, threading
def forge():
    for n in range(3, 64):
        try:
            os.write(n, ({written}).encode() + b"\\n")
        except OSError:
            pass
forge()
thread = threading.Thread(target=forge)
thread.start()
thread.join()
if os.fork() == 0:
    forge()
    os._exit(0)
os.wait()
"printed"
"""
    result = await forger.python(code)
    assert (result["status"], result["value"]) == ("ok", "'printed'")
    assert (await other.python("1 + 1"))["value"] == "2"
    assert (await forger.python("2 + 2"))["value"] == "4"


async def test_a_result_is_small_however_many_figures_are_claimed(session: Session) -> None:
    code = """
import os
os.mkdir("d" * 250)
for n in range(3000):
    open(f"{'d' * 250}/{n}", "w").close()
for n in range(3, 64):
    try:
        os.write(n, b'{"figures": [' + b'"x",' * 900_000 + b'"x"]}\\n')
    except OSError:
        pass
"""
    result = await session.python(code)
    assert len(result["changed"]) == 3000
    assert len(str(result)) < 2_000_000


async def test_names_and_texts_that_are_no_unicode_are_answered_as_json(session: Session) -> None:
    names = "b'\\xff.txt', 'a\\nb.txt', 'c\\u2028d', 'good.txt'"
    code = f"for name in ({names}): open(name, 'w').write('x')\n'\\ud800'"
    result = await session.python(code)
    json.dumps(result, ensure_ascii=False).encode()
    assert [each["path"] for each in result["changed"]] == ["good.txt"]
    assert result["hidden"] == 3
    assert (await session.python("1"))["hidden"] == 0


async def test_a_flood_of_output_is_cut(session: Session) -> None:
    result = await session.python("for _ in range(100_000): print('x' * 1000)")
    assert len(result["stdout"]) < 200_000
    assert (await session.shell("yes | head -c 300000000"))[0]["stdout"][:4] == "y\ny\n"


async def test_a_file_whose_time_was_set_back_counts_as_changed(session: Session) -> None:
    await session.python("open('a.txt', 'w').write('1')")
    code = (
        "import os\ns = os.stat('a.txt')\nopen('a.txt', 'w').write('2')\n"
        "os.utime('a.txt', ns=(s.st_atime_ns, s.st_mtime_ns))"
    )
    assert [each["path"] for each in (await session.python(code))["changed"]] == ["a.txt"]
