"""What an operator reads when the machine is the problem: one sentence with the remedy."""

import os
import pwd
import sys
from pathlib import Path

import pytest

from cli.embedded.postgres import Postgres, first_error
from cli.embedded.process import ServerProcess
from cli.embedded.unprivileged_user import check_user_has_a_name
from cli.errors import CommandFailed


class Failing(ServerProcess):
    """A server that prints lines and ends."""

    def __init__(self, folder: Path, lines: str) -> None:
        command = [sys.executable, "-c", f"print({lines!r}); raise SystemExit(1)"]
        super().__init__("valkey", folder / "logs" / "valkey.log", command)

    def is_ready(self) -> bool:
        return False


def test_a_full_disk_is_named_although_the_last_line_of_the_log_is_another(tmp_path: Path) -> None:
    lines = "# Can't save in background: No space left on device\nbye bye"
    with pytest.raises(CommandFailed, match=rf"^the disk of {tmp_path} is full: free 1 GB"):
        Failing(tmp_path, lines).start()


def test_initdb_gives_its_reason_and_not_how_it_cleans_up() -> None:
    output = (
        "initdb: error: could not change permissions of directory: Operation not permitted\n"
        'initdb: removing contents of data directory "/data/postgres.unfinished"\n'
    )
    assert "Operation not permitted" in first_error(output)
    assert first_error("") == ""


def test_postgres_gives_its_reason_and_not_how_it_stops(tmp_path: Path) -> None:
    server = Postgres(tmp_path / "postgres", tmp_path / "logs", port=1, password="x")
    server.log.parent.mkdir()
    server.log.write_text(
        "FATAL:  could not create lock file\nLOG:  database system is shut down\n"
    )
    assert server.last_log_line() == "FATAL:  could not create lock file"


def test_a_user_without_an_entry_gets_a_sentence_before_initdb_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_entry(_: int) -> pwd.struct_passwd:
        raise KeyError

    check_user_has_a_name()
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    with pytest.raises(CommandFailed, match=rf"user id {os.geteuid()}, which /etc/passwd does not"):
        check_user_has_a_name()
