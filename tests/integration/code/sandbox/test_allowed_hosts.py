"""Code reaches the hosts of its allow-list through the sandbox, and nothing else."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from features.code import commands
from tests.integration.code.sandbox.conftest import Hosts, Session, SessionOpener
from tests.integration.code.sandbox.test_sessions import ONE_MODE
from tests.support.api import until
from tests.support.sandboxes import SandboxProcess, running_sandbox

FETCH = """
import json, ssl, urllib.error, urllib.request

def fetch(url, data=None):
    try:
        with urllib.request.urlopen(url, data, context=trusting) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode().strip()}"
    except OSError as error:
        return str(error)

trusting = ssl.create_default_context(cadata=%r)
"""
REFUSED = "is not in the allow-list of this sandbox"


async def _fetched(session: Session, *calls: str) -> list[str]:
    result = await session.python(f"print(json.dumps([{', '.join(calls)}]))")
    return list(json.loads(result["stdout"] or result["error"]))


@ONE_MODE
async def test_code_reaches_allowed_hosts_only(open_session: SessionOpener, hosts: Hosts) -> None:
    session = await open_session(hosts.plain, hosts.tls, "*.example", "pypi.org")
    await session.python(FETCH % hosts.certificate.read_text())
    plain, tls = f"http://{hosts.plain}", f"https://{hosts.tls}"
    answers = await _fetched(
        session,
        f"fetch('{plain}/a?b=1')",
        f"fetch('{tls}/a', b'text')",
        "fetch('http://pypi.org/')",
        "fetch('https://pypi.org/')",
        "fetch('http://169.254.169.254/latest')",
        f"fetch('{plain.replace('localhost', '127.0.0.1')}/')",
        f"fetch('http://a.example@{hosts.plain}/')",
        "fetch('http://a.example:22/')",
        "fetch('http://a.example/')",
    )
    assert answers[:2] == [f"GET /a?b=1 {hosts.plain} ", f"POST /a {hosts.tls} text"]
    assert answers[2] == f"403 pypi.org:80 {REFUSED}"
    assert f"403 Forbidden: pypi.org:443 {REFUSED}" in answers[3]
    assert answers[4] == "403 the URL is refused: its address is not on the public internet"
    assert answers[5] == f"403 127.0.0.1:{hosts.plain.partition(':')[2]} {REFUSED}"
    assert answers[6].startswith("403 the URL is refused: ")
    assert answers[7] == f"403 a.example:22 {REFUSED}"
    assert answers[8] == "403 a.example:80 could not be reached, or is not on the public internet"
    use = await session.sandbox.call("GET", session.path)
    assert use["sent_bytes"] > 100
    assert use["received_bytes"] > 100
    if shutil.which("curl"):
        curl = "curl -sS --cacert ca.pem"
        await session.sandbox.call(
            "PUT", f"{session.path}/files/ca.pem", data=hosts.certificate.read_bytes()
        )
        outputs = await session.shell(
            *(f"{curl} {plain}/c", f"{curl} -d x {tls}/d", f"{curl} https://pypi.org"),
        )
        assert [each["stdout"] for each in outputs] == [
            *(f"GET /c {hosts.plain} ", f"POST /d {hosts.tls} x"),
            "",
        ]
        assert "403" in outputs[2]["stderr"]


@ONE_MODE
async def test_another_sessions_hosts_are_not_reached(
    open_session: SessionOpener, hosts: Hosts
) -> None:
    one, other, none = (
        await open_session(hosts.plain),
        await open_session("a.example"),
        await open_session("b.c"),
    )
    for session in (one, other, none):
        await session.python(FETCH % hosts.certificate.read_text())
    url = f"fetch('http://{hosts.plain}/')"
    answers = await asyncio.gather(*(_fetched(each, url) for each in (one, other, none)))
    assert answers == [
        [f"GET / {hosts.plain} "],
        [f"403 {hosts.plain} {REFUSED}"],
        ["<urlopen error [Errno -3] Temporary failure in name resolution>"],
    ]


@ONE_MODE
async def test_what_speaks_no_http_gets_an_answer_that_says_so(open_session: SessionOpener) -> None:
    session = await open_session("a.example")
    code = """
import os, socket
s = socket.create_connection(("192.0.2.1", 5432))
s.sendall(bytes([22, 3, 1, 0]))
print(s.recv(1000).decode().splitlines()[-1])
s.close()
def is_open(number):
    try:
        return bool(os.fstat(number))
    except OSError:
        return False
print([n for n in range(3, 256) if is_open(n)])
"""
    printed = (await session.python(code))["stdout"].splitlines()
    assert printed == [
        "the network of this sandbox is an HTTP proxy, http://127.0.0.1:3128",
        "[]",  # above all not the descriptor on which calls are answered
    ]


@ONE_MODE
async def test_signals_that_interrupt_calls_end_no_network(
    open_session: SessionOpener, hosts: Hosts
) -> None:
    session = await open_session(hosts.plain)
    code = """
import signal, socket, time
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.004, 0.004)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    try:
        socket.socket().close()
    except OSError:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
socket.socket().close()
"""
    assert (await session.python(code))["error"] == ""


@ONE_MODE
async def test_a_flood_of_sockets_harms_no_other_session(
    open_session: SessionOpener, hosts: Hosts
) -> None:
    """Whatever a session keeps open ends with it."""
    flood, other = await open_session(hosts.plain), await open_session(hosts.plain)
    await other.python(FETCH % hosts.certificate.read_text())
    held = """
import socket
kept = []
try:
    while len(kept) < 1000:
        kept.append(socket.socket())
except OSError as error:
    print(len(kept), error.errno)
"""
    assert (await flood.python(held))["stdout"] == "16 24\n"
    closed = "del kept\nfor n in range(150):\n    socket.socket().close()\n'all'"
    assert (await flood.python(closed))["value"] == "'all'"
    threads = """
import threading
def spin():
    while True:
        try:
            socket.socket()
        except OSError:
            pass
for _ in range(20):
    threading.Thread(target=spin, daemon=True).start()
threading.Event().wait()
"""
    running = await flood.begin({"kind": "python", "code": threads})
    url = f"fetch('http://{hosts.plain}/')"
    for _ in range(5):
        assert await _fetched(other, url) == [f"GET / {hosts.plain} "]
    await flood.sandbox.call("DELETE", running)
    await _wait_at_hosts(flood, hosts)
    await until(lambda: hosts.connections() >= 10)
    await flood.sandbox.call("DELETE", flood.path)
    await until(lambda: hosts.connections() == 0)
    assert await _fetched(other, url) == [f"GET / {hosts.plain} "]


@ONE_MODE
async def test_descriptors_on_their_way_keep_no_session_from_starting(
    open_session: SessionOpener,
) -> None:
    """The kernel counts them for all sessions of a user together."""
    hoarder = await open_session()
    code = """
import os, socket
ours, theirs = socket.socketpair()
try:
    for _ in range(3):
        socket.send_fds(ours, [b"x"], [0] * 250)
except OSError as error:
    print(error.strerror)
"""
    assert (await hoarder.python(code))["stdout"] == "Too many references: cannot splice\n"
    assert (await (await open_session("a.example")).python("1"))["value"] == "1"


async def _wait_at_hosts(session: Session, hosts: Hosts) -> None:
    code = f"""
import socket
kept = [socket.socket() for _ in range(10)]
for each in kept:
    each.sendall(b"GET http://{hosts.plain}/wait HTTP/1.1\\r\\n\\r\\n")
"""
    assert (await session.python(code))["error"] == ""


async def test_a_name_that_leads_inside_is_refused(tmp_path: Path, hosts: Hosts) -> None:
    token = "a-token-of-16-characters"
    options = ("--allowed-hosts", hosts.plain, "--runner", "kernel")
    async with running_sandbox(tmp_path, token, *options) as sandbox:
        body = {"allowed_domains": [hosts.plain]}
        opened = await sandbox.call("POST", "/sessions", json=body)
        session = Session(sandbox, opened["session"], "")
        await session.python(FETCH % hosts.certificate.read_text())
        [answer] = await _fetched(session, f"fetch('http://{hosts.plain}/')")
        wrong = {"allowed_domains": ["http://a.example/"]}
        assert await sandbox.call("POST", "/sessions", json=wrong) == 400
    assert answer == f"403 {hosts.plain} could not be reached, or is not on the public internet"


_NO_HANDING_OVER = """
import ctypes, os, struct, sys
from models.confinement.kernel import prctl
number = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
steps = [(0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 24), (0x15, 0, 1, 0x40182103)]
steps += [(0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("@HBBI", *step) for step in steps))
head = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
prctl(38, 1)
prctl(22, 2, ctypes.addressof(head))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Refuses to give descriptors to processes, as rules of containers may do."""


async def test_a_system_that_hands_no_calls_over_is_noticed_at_the_start(tmp_path: Path) -> None:
    sandbox = SandboxProcess(tmp_path, "a-token-of-16-characters", "--runner", "kernel")
    sandbox.environment["BACKBURNER_CODE__ALLOWED_HOSTS"] = "pypi.org"
    sandbox.command[1:1] = ["-c", _NO_HANDING_OVER]
    sandbox.launch()
    await until(lambda: not sandbox.running(), 30)
    assert "the kernel does not hand calls for sockets over" in sandbox.log.read_text()


@pytest.mark.parametrize(
    ("allowed", "runner", "fault"),
    [
        ("http://x/", "kernel", "'http://x/' is no host name such as pypi.org"),
        ('["x"', "kernel", "has neither commas between its entries nor JSON"),
        ("x:22", "kernel", "'x:22': the port must be 80, 443, or 1024 to 65535"),
        ("pypi.org", "runsc", "ALLOWED_HOSTS needs BACKBURNER_CODE__RUNNER=kernel"),
    ],
)
def test_a_setting_that_cannot_be_kept_is_one_line(
    tmp_path: Path, allowed: str, runner: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        "BACKBURNER_CODE__TOKEN": "a-token-of-16-characters",
        "BACKBURNER_CODE__ALLOWED_HOSTS": allowed,
        "BACKBURNER_CODE__RUNNER": runner,
    }
    monkeypatch.setattr(os, "environ", environment)
    done = CliRunner().invoke(commands.app, ["--folder", str(tmp_path)])
    assert done.exit_code == 1
    assert fault in done.output
    assert len(done.output.splitlines()) == 1
