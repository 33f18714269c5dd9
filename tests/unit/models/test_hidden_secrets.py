"""What this server sends to an upstream to identify itself appears in no text."""

import json
import subprocess
import sys
from uuid import UUID

from models.config.upstream import UpstreamSettings
from models.config.upstream_access import (
    StreamedSecrets,
    all_secrets,
    secrets_of,
    without_secrets,
)
from models.secrets import Sealer
from tests.support.stack import ROOT

UPSTREAM = UpstreamSettings.model_validate(
    {
        "api_key": "key-0123456789",
        "headers": {"x-tenant": 'Token "quoted" value+1', "x-short": "abc"},
        "query": {"api-token": "query/ä 1234", "number": 12345678},
    }
)


def test_the_settings_show_no_value() -> None:
    for text in (repr(UPSTREAM), str(UPSTREAM), UPSTREAM.model_dump_json()):
        assert "0123456789" not in text
        assert "quoted" not in text
        assert "1234" not in text
    assert UPSTREAM.plain_query == {"api-token": "query/ä 1234", "number": "12345678"}


def test_key_headers_and_query_are_removed_in_every_spelling() -> None:
    secrets = secrets_of(UPSTREAM)
    for text in (
        "key-0123456789",
        "query/ä 1234",
        "query%2F%C3%A4%201234",
        "query/%C3%A4%201234",
        "query%2F%C3%A4+1234",
        'Token "quoted" value+1',
        json.dumps('Token "quoted" value+1'),
        json.dumps("query/ä 1234"),
        "12345678",
        "cut: key-01234",
    ):
        hidden = without_secrets(f"before {text}", secrets)
        assert "…" in hidden, text
        assert "1234" not in hidden, text
    assert without_secrets("abc", secrets) == "abc", "a word of three letters is in any text"


CONTENT = b'data: {"text": "key-01 is no key"}\n\n'
ERROR = b'event: error\r\ndata: {"message": "not key-0123456789 of 12345678"}\r\n\r\n'


def streamed(*pieces: bytes) -> list[bytes]:
    """What is sent at each piece of a stream, and at its end."""
    stream = StreamedSecrets(secrets_of(UPSTREAM))
    return [*map(stream.feed, pieces), stream.finish()]


def test_an_error_in_a_stream_shows_none_of_them_wherever_the_stream_is_cut() -> None:
    whole = CONTENT + ERROR + CONTENT
    hidden = whole.replace(b"key-0123456789", "…".encode()).replace(b"12345678", "…".encode())
    for first in range(len(whole)):
        for second in (first, first + 1, first + 9, len(whole)):
            pieces = whole[:first], whole[first:second], whole[second:]
            assert b"".join(streamed(*pieces)) == hidden
    without_end = ERROR.rstrip()
    assert b"123456" not in b"".join(streamed(without_end))
    assert b"123456" not in b"".join(streamed(without_end[:-12])), "cut inside of a secret"
    long = b"data: " + b"x" * 2_000_000 + b" 12345678 "
    sent = streamed(long + b"y" * 2_000_000, b"z")
    assert len(sent[0]) > 4_000_000, "an event without an end is not kept for ever"
    assert b"12345678" not in b"".join(sent)


def test_nothing_else_in_a_stream_is_changed_or_kept_back() -> None:
    word = b'data: {"text": "12345678"}\n\n'
    assert streamed(CONTENT, word, CONTENT) == [CONTENT, word, CONTENT, b""]
    assert streamed(b"data: the k", b"ing\n\n") == [b"data: the ", b"king\n\n", b""]
    assert b"".join(streamed(b"\xc3", b"\xa9\xff 12345678 error\n\n")) == (
        b"\xc3\xa9\xff \xe2\x80\xa6 error\n\n"
    )


def test_a_traceback_in_a_log_shows_none_of_them() -> None:
    program = """
import structlog
from models import logs
logs.configure("info")
logs.hide(["query/ä 1234"])
logs.capture_output()
try:
    raise ValueError("GET http://up/v1?api-token=query/ä 1234")
except ValueError:
    structlog.get_logger().exception("call_failed")
print("query/ä 1234")
raise RuntimeError("uncaught query/ä 1234")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["call_failed", "printed", "process_failed"]
    assert "1234" not in done.stderr.decode() + done.stdout.decode()
    assert "api-token=…" in lines[0]["exception"]


def test_the_secrets_of_all_upstreams_are_hidden_once() -> None:
    assert len(all_secrets([UPSTREAM, UPSTREAM])) == len(set(secrets_of(UPSTREAM)))


def test_a_mark_is_valid_for_one_project_one_maker_and_one_content() -> None:
    project, other = UUID(int=1), UUID(int=2)
    old, new = Sealer([b"o" * 32]), Sealer([b"n" * 32, b"o" * 32])
    mark = old.mark(project, "big", "content")
    assert mark is not None
    assert new.is_marked(project, "big", "content", mark), "made with a key that still opens"
    for each in (
        (other, "big", "content"),
        (project, "small", "content"),
        (project, "big", "other"),
        (project, "bigc", "ontent"),
    ):
        assert not new.is_marked(*each, mark)
    assert Sealer([]).mark(project, "big", "content") is None
    assert not Sealer([]).is_marked(project, "big", "content", mark)
