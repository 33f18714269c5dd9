"""Forms that are read while they arrive, and written anew for an upstream."""

import pytest

from features.files.form import (
    FileBegin,
    FileData,
    FileEnd,
    FormEvent,
    FormField,
    FormParser,
    form_boundary,
)
from features.proxy.forms import FormWriter
from models.errors import ApiError

BOUNDARY = b"limit"
MAX_FIELDS = 1000


def part(*headers: str, body: bytes = b"x") -> bytes:
    """A part with these header lines."""
    return b"--limit\r\n" + "\r\n".join((*headers, "", "")).encode() + body + b"\r\n"


def named(options: str, body: bytes = b"x") -> bytes:
    """A part with this Content-Disposition."""
    return part(f"Content-Disposition: form-data; {options}", body=body)


END = b"--limit--\r\n"
AUDIO = bytes(range(256)) * 8 + b"\r\n--limi\r\n--limit-\r\n--li"
"""Holds beginnings of the boundary."""


def read(form: bytes, size: int = 1 << 20) -> list[FormEvent] | None:
    """The events of a form that arrives in pieces of this size, data in one piece; None if it does
    not end."""
    parser = FormParser(BOUNDARY, MAX_FIELDS)
    events: list[FormEvent] = []
    for at in range(0, len(form), size):
        for event in parser.feed(form[at : at + size]):
            if isinstance(event, FileData) and isinstance(events[-1], FileData):
                events[-1] = FileData(events[-1].data + event.data)
            else:
                events.append(event)
    return events if parser.has_ended else None


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1 << 20])
def test_a_form_is_the_same_in_pieces_of_any_size(size: int) -> None:
    form = b"".join(
        (
            named('name="file"; filename="späch.mp3"', AUDIO),
            named('name="model"', b"whisper"),
            part(
                'content-disposition:form-data;name=empty;filename=""',
                "Content-Type: audio/wav",
                body=b"",
            ),
            END,
            b"an epilogue",
        )
    )
    assert read(form, size) == [
        FileBegin("file", "späch.mp3"),
        FileData(AUDIO),
        FileEnd(),
        FormField("model", b"whisper"),
        FileBegin("empty", "", "audio/wav"),
        FileEnd(),
    ]


def test_a_form_that_was_written_anew_reads_the_same() -> None:
    events = read(
        named('name="file"; filename="a \\"b\\" c\\\\"', AUDIO)
        + named('name="images[][url]"', b"\r\n")
        + END
    )
    assert events is not None
    writer = FormWriter()
    written = b"".join(map(writer.encode, events)) + writer.end
    boundary = form_boundary(writer.content_type)
    assert boundary is not None
    assert boundary not in AUDIO
    again = read(written.replace(boundary, BOUNDARY))
    assert again is not None
    assert again[0] == FileBegin("file", "a _b_ c_")
    assert again[1:] == events[1:]


UNREADABLE: list[tuple[str, bytes]] = [
    ("no boundary", b"model=x"),
    ("another boundary", b"--other\r\n\r\n"),
    ("no name", named("x=y") + END),
    ("no disposition", part("Content-Type: text/plain") + END),
    ("another disposition", part('Content-Disposition: attachment; name="a"') + END),
    ("two dispositions", part(*['Content-Disposition: form-data; name="a"'] * 2) + END),
    ("a name with a quote", named('name="mo\\"del"') + END),
    ("a name with a backslash", named('name="mod\\\\el"') + END),
    ("a name with a space", named('name="model "') + END),
    ("a name with an escape", named('name="model%00"') + END),
    ("an extended name alone", named("name*=UTF-8''model") + END),
    ("an empty name", named('name=""') + END),
    (
        "base64",
        part(
            'Content-Disposition: form-data; name="a"; filename="b"',
            "Content-Transfer-Encoding: base64",
        )
        + END,
    ),
    ("many options", named('name="a"' + "; b=c" * 20) + END),
    ("many parts", named('name="a"') * 300 + END),
    ("many headers", part(*(f"X-{n}: y" for n in range(20))) + END),
    ("a long header", part("X: " + "y" * 10_000) + END),
]


@pytest.mark.parametrize("form", [pytest.param(form, id=name) for name, form in UNREADABLE])
@pytest.mark.parametrize("size", [1, 1 << 20], ids=["bytewise", "whole"])
def test_a_form_that_two_readers_could_understand_differently_is_refused(
    form: bytes, size: int
) -> None:
    with pytest.raises(ApiError) as refused:
        read(form, size)
    assert (refused.value.status, refused.value.code) == (400, "invalid_form")


@pytest.mark.parametrize("form", [b"", named('name="a"'), named('name="a"') + END[:-4]])
def test_a_form_that_is_cut_off_has_not_ended(form: bytes) -> None:
    assert read(form) is None


def test_fields_are_bounded_together_and_files_are_not() -> None:
    events = read(named('name="f"; filename="g"', b"x" * 5000) + END)
    assert events == [FileBegin("f", "g"), FileData(b"x" * 5000), FileEnd()]
    with pytest.raises(ApiError) as refused:
        read(named('name="a"', b"x" * 600) + named('name="b"', b"x" * 600) + END)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("multipart/form-data; boundary=limit", b"limit"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a;b"', b"a;b"),
        ("application/json", None),
        ("multipart/mixed; boundary=limit", None),
        ("", None),
    ],
)
def test_the_boundary_of_a_form(content_type: str, expected: bytes | None) -> None:
    assert form_boundary(content_type) == expected


def test_a_form_without_a_boundary_or_with_a_long_one_is_refused() -> None:
    with pytest.raises(ApiError):
        form_boundary("multipart/form-data")
    with pytest.raises(ApiError):
        FormParser(b"x" * 1000, MAX_FIELDS)
