"""Bytes in, payloads out, wherever the reads were cut."""

import random

import pytest

from models.errors import UpstreamFailed
from worker.upstream.sse import SseSplitter

STREAMS = [
    pytest.param(
        b'data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n',
        [b'{"a":1}', b'{"b":2}'],
        True,
        id="the ordinary stream",
    ),
    pytest.param(b'data:{"a":1}\n\ndata:[DONE]\n\n', [b'{"a":1}'], True, id="no space"),
    pytest.param(b'data: {"a":1}\r\n\r\ndata: [DONE]\r\n\r\n', [b'{"a":1}'], True, id="CRLF"),
    pytest.param(b'data: {"a":1}\r\rdata: [DONE]\r\r', [b'{"a":1}'], True, id="CR"),
    pytest.param(
        b'data: {"a":1}\r\n\ndata: {"b":2}\n\r\n\r\n',
        [b'{"a":1}', b'{"b":2}'],
        False,
        id="a mixture",
    ),
    pytest.param(
        b': OPENROUTER PROCESSING\n\ndata: {"a":1}\n\n: ping\n\n',
        [b'{"a":1}'],
        False,
        id="comments",
    ),
    pytest.param(
        b'event: message\nid: 7\nretry: 10\ndata: {"a":1}\n\n',
        [b'{"a":1}'],
        False,
        id="other fields",
    ),
    pytest.param(b'data: {\ndata: "a":1}\n\n', [b'{\n"a":1}'], False, id="data on two lines"),
    pytest.param(
        b'data: {"a":1}\ndata: {"b":2}\ndata: [DONE]\n',
        [b'{"a":1}', b'{"b":2}'],
        True,
        id="no empty lines at all",
    ),
    pytest.param(b'data: {"a":1}\n\ndata: "[done]"\n\n', [b'{"a":1}'], True, id="[DONE] as JSON"),
    pytest.param(b'\xef\xbb\xbfdata: {"a":1}\n\n', [b'{"a":1}'], False, id="a byte order mark"),
    pytest.param(
        b'data: {"a":1}\n\ndata: {"b":2}',
        [b'{"a":1}', b'{"b":2}'],
        False,
        id="no line end at the end",
    ),
    pytest.param(
        b'data: {"a":1}\n\ndata: [DONE]', [b'{"a":1}'], True, id="[DONE] without a line end"
    ),
    pytest.param(
        b'data: {"a":1}\n\ndata: {"b":2}\n',
        [b'{"a":1}', b'{"b":2}'],
        False,
        id="no empty line at the end",
    ),
    pytest.param(
        b'data: {"a":1}\n\n\n\n\ndata: {"b":2}\n\n',
        [b'{"a":1}', b'{"b":2}'],
        False,
        id="more empty lines than needed",
    ),
    pytest.param(
        b'data:\n\ndata\n\ndata: \n\ndata: {"a":1}\n\n', [b'{"a":1}'], False, id="empty data"
    ),
    pytest.param(b'data: [DONE]\n\ndata: {"a":1}\n\n', [], True, id="nothing counts after [DONE]"),
    pytest.param(b'data: {"a":"[DONE]"}\n\n', [b'{"a":"[DONE]"}'], False, id="[DONE] inside JSON"),
    pytest.param(b"data:  [DONE] \n\n", [], True, id="[DONE] among spaces"),
    pytest.param(
        b'{"error":{"message":"boom"}}',
        [b'{"error":{"message":"boom"}}'],
        False,
        id="JSON instead of a stream",
    ),
    pytest.param(
        b'\n{\n  "a": [\n\n  1]\n}\n',
        [b'{\n  "a": [\n\n  1]\n}\n'],
        False,
        id="pretty JSON instead of a stream",
    ),
    pytest.param(b'[{"error":1}]\n', [b'[{"error":1}]\n'], False, id="a list instead of a stream"),
    pytest.param(
        b'data: {"a":1}\n\n{"error":1}\n',
        [b'{"a":1}', b'{"error":1}'],
        False,
        id="a bare error in the stream",
    ),
    pytest.param(
        b'data: {"a":1}\n\ndata: {"b":', [b'{"a":1}'], False, id="cut off in the middle of an event"
    ),
    pytest.param(
        b'data: {"a":1}\n\ndata: [DO', [b'{"a":1}'], False, id="cut off in the middle of [DONE]"
    ),
    pytest.param(b'{"a":', [b'{"a":'], False, id="a body cut off in the middle"),
    pytest.param(
        b"<html>\n<body>502</body>\n</html>\n",
        [b"<html>\n<body>502</body>\n</html>\n"],
        False,
        id="HTML",
    ),
    pytest.param(b"no healthy upstream", [b"no healthy upstream\n"], False, id="words"),
    pytest.param(
        b'event: error\ndata: {"message":"boom"}\n\ndata: {"a":1}\n\n',
        [b'{"error":{"message":"boom"}}', b'{"a":1}'],
        False,
        id="an error event",
    ),
    pytest.param(
        b"event: error\ndata: it is\ndata: gone\n\n",
        [b'{"error":"it is\\ngone"}'],
        False,
        id="an error event of words",
    ),
    pytest.param(b"event: error\ndata: [DONE]\n\n", [], True, id="an error event that is the end"),
    pytest.param(
        b'data: {"a":1}\n\nerror: {"code":500}\n\n',
        [b'{"a":1}', b'{"error":{"code":500}}'],
        False,
        id="the field error",
    ),
    pytest.param(b"error: gone\n\n", [b'{"error":"gone"}'], False, id="the field error of words"),
    pytest.param(b"data: it is gone", [b"it is gone"], False, id="words without a line end"),
    pytest.param(b'data: {"a":1}\n\nlost words\n', [b'{"a":1}'], False, id="words after an event"),
    pytest.param(b"", [], False, id="nothing"),
]


def _read(reads: list[bytes]) -> tuple[list[bytes], bool]:
    splitter = SseSplitter(limit=1000)
    payloads = [payload for read in reads for payload in splitter.feed(read)]
    return payloads + splitter.flush(), splitter.done


@pytest.mark.parametrize(("stream", "payloads", "done"), STREAMS)
def test_a_stream_in_one_read_is_split(stream: bytes, payloads: list[bytes], done: bool) -> None:
    assert _read([stream]) == (payloads, done)


@pytest.mark.parametrize(("stream", "payloads", "done"), STREAMS)
def test_a_stream_byte_by_byte_gives_the_same_payloads(
    stream: bytes, payloads: list[bytes], done: bool
) -> None:
    assert _read([stream[at : at + 1] for at in range(len(stream))]) == (payloads, done)


@pytest.mark.parametrize(("stream", "payloads", "done"), STREAMS)
def test_a_stream_cut_anywhere_gives_the_same_payloads(
    stream: bytes, payloads: list[bytes], done: bool
) -> None:
    chance = random.Random(11)
    for _ in range(200):
        cuts = sorted(chance.randint(0, len(stream)) for _ in range(chance.randint(1, 5)))
        assert _read(
            [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        ) == (payloads, done)


def test_a_payload_is_returned_as_soon_as_it_is_complete() -> None:
    splitter = SseSplitter(limit=1000)
    assert splitter.feed(b"data: {}\n") == []
    assert splitter.feed(b"\ndata: {") == [b"{}"]
    assert splitter.feed(b"}\r\n\r") == [b"{}"]
    assert splitter.feed(b"\ndata: {}\n\ndata: {}\n\n") == [b"{}", b"{}"]


TOO_LARGE = [
    pytest.param([b"data: " + b"x" * 1001 + b"\n\n"], id="in one read"),
    pytest.param([b"data: " + b"x" * 600, b"x" * 600], id="a line without an end"),
    pytest.param([b"data: " + b"x" * 90 + b"\n"] * 12, id="many lines"),
    pytest.param([b"data:\n"] * 1100, id="many empty lines of data"),
    pytest.param([b": " + b"x" * 600, b"x" * 600], id="a comment without an end"),
]


def _feed_all(splitter: SseSplitter, reads: list[bytes]) -> None:
    for read in reads:
        splitter.feed(read)


@pytest.mark.parametrize("reads", TOO_LARGE)
def test_an_event_above_the_limit_fails_the_turn(reads: list[bytes]) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        _feed_all(SseSplitter(limit=1000), reads)
    assert caught.value.reason == "upstream_garbage"


def test_the_limit_is_for_one_event_not_for_the_stream() -> None:
    splitter = SseSplitter(limit=1000)
    event = b"data: " + b"x" * 900 + b"\n\n"
    assert splitter.feed(event * 10) == [b"x" * 900] * 10
    assert splitter.feed(b": " + b"x" * 900 + b"\n" + event) == [b"x" * 900]
