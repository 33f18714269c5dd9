"""What code of a model must not be able to do (docs/code.md, "What is protected")."""

import json
import os
import platform
import secrets
from pathlib import Path

import pytest

from tests.integration.code.sandbox.conftest import Session, SessionOpener
from tests.support.code_attacks import ATTACKS, attack_cell
from tests.support.sandboxes import SandboxProcess

OWN_IN_GVISOR = {
    "a folder of another process",
    "a signal to another session",
    "a signal to the sandbox",
    "a write to /dev/shm",
    "a write to /tmp",
    "environment of another session",
    "limits of another process",
    "priority of another process",
    "the list of processes",
    "the sandbox's folder",
}
"""They reach nothing but the container of the code itself, in which it is process 1, and `/`."""


@pytest.mark.parametrize("domains", [(), ("a.example",)], ids=["no-network", "a-host"])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of calls are x86-64's")
async def test_the_kernel_refuses_attacks(
    sandbox: SandboxProcess, open_session: SessionOpener, domains: tuple[str, ...]
) -> None:
    session, other = await open_session(*domains), await open_session()
    facts = "import os\nopen('secret.txt', 'w').write('x')\nprint(os.getpid(), os.getcwd())"
    pid, folder = (await other.python(facts))["stdout"].split()
    folder = folder.replace("/mnt/data", str(other.folder / "data"))
    outside = sandbox.folder / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "victim").write_text("x")
    owner = sandbox.folder.stat()
    for path in (outside, outside / "victim"):
        os.chown(path, owner.st_uid, owner.st_gid)

    result = await session.python(attack_cell(int(pid), folder, str(outside)))

    outcomes = json.loads(result["stdout"] or result["error"])
    done = {name: each for name, each in outcomes.items() if each != "refused"}
    harmless = OWN_IN_GVISOR if "runsc" in sandbox.command else set()
    harmless = harmless | ({"a socket AF_INET SOCK_STREAM"} if domains else set())
    assert {name: each for name, each in done.items() if name not in harmless} == {}
    assert len(outcomes) == len(ATTACKS)
    assert (await other.python("'alive'"))["value"] == "'alive'"
    assert [each.name for each in outside.iterdir()] == ["victim"]


async def test_files_outside_keep_their_modes_and_times(
    sandbox: SandboxProcess, session: Session
) -> None:
    victim = sandbox.folder / "modes"
    victim.write_text("x")
    owner = sandbox.folder.stat()
    os.chown(victim, owner.st_uid, owner.st_gid)
    victim.chmod(0o640)
    before = victim.stat()
    code = f"""
import os
for attack in ("chmod(p, 0o777)", "chmod(p, 0o4777)", "chown(p, 1, 1)", "utime(p, (1, 1))",
               "setxattr(p, 'user.x', b'x')", "truncate(p, 0)", "remove(p)"):
    try:
        eval("os." + attack, {{"os": os, "p": {str(victim)!r}}})
    except OSError:
        pass
"""
    assert (await session.python(code))["status"] == "ok"
    after = victim.stat()
    assert (after.st_mode, after.st_uid, after.st_mtime) == (
        *(before.st_mode, before.st_uid),
        before.st_mtime,
    )
    assert not os.listxattr(victim)
    assert victim.read_text() == "x"


async def test_no_secret_of_the_sandbox_is_in_the_session(
    sandbox: SandboxProcess, session: Session
) -> None:
    code = "import os, gc\nprint(dict(os.environ))\nos.popen('env; set').read()"
    result = await session.python(code)
    assert sandbox.token not in str(result)
    assert "BACKBURNER" not in str(result)


async def test_signals_to_all_reach_only_the_session(open_session: SessionOpener) -> None:
    killer, other = await open_session(), await open_session()
    await other.python("x = 1")
    await killer.shell("kill -9 -1")
    await killer.python("import os, signal\nos.kill(-1, signal.SIGKILL)")
    assert (await other.python("x"))["value"] == "1"


@pytest.mark.parametrize(
    "trick",
    [
        "os.rename(d, d + '2'); os.symlink('/', d)",
        "os.remove(o + '/stdout'); os.symlink('/etc/passwd', o + '/stdout')",
        "os.rename(o, o + '2'); os.symlink('/etc', o)",
        "os.mkfifo('pipe'); os.symlink('/etc/passwd', 'link.txt'); os.symlink('/', 'root')",
    ],
    ids=["data", "stdout", "out", "inside"],
)
async def test_the_server_follows_no_link_of_the_code(session: Session, trick: str) -> None:
    code = f"""
import os
d, o = os.getcwd(), os.path.dirname(os.getcwd()) + "/out"
try:
    {trick}
except OSError:
    pass
"""
    result = await session.python(code)
    assert "root:" not in str(result)
    assert [each["path"] for each in result["changed"]] == []
    for path in ("link.txt", "root/etc/hostname", "pipe", "../out/stdout", "%2e%2e/out/stdout"):
        answer = await session.sandbox.call("GET", f"{session.path}/files/{path}")
        assert type(answer) is int, answer
    name = secrets.token_hex(8)
    await session.sandbox.call("PUT", f"{session.path}/files/root/tmp/{name}", data=b"x")
    assert name not in _names("/tmp")
    assert (await session.python("1 + 1"))["value"] == "2"


def _names(folder: str) -> set[str]:
    return {each.name for each in Path(folder).iterdir()}


async def test_only_workers_are_answered(sandbox: SandboxProcess, session: Session) -> None:
    token, sandbox.token = sandbox.token, "another-token-of-16"
    try:
        assert await sandbox.call("GET", "/status") == 401
        assert await sandbox.call("DELETE", session.path) == 401
    finally:
        sandbox.token = token
    assert (await session.python("1"))["value"] == "1"
