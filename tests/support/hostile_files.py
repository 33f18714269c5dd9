"""Files that attack whoever reads them, and what is to become of each: see docs/file-kinds.md.

`python -m tests.support.hostile_files [NAME…]` reads them, each in a process as a worker does, and
prints the table of that page.
"""

import asyncio
import logging
import os
import random
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import psutil
import structlog
from pypdf import PdfWriter

from features.retrieval.extract.child_protocol import ExtractionFailed, ExtractionLimits
from features.retrieval.extract.extraction import extract
from tests.support.files_to_read import (
    cell,
    docx,
    one_page,
    package,
    pages_with_text,
    paragraph,
    pdf,
    pptx,
    stream,
    xlsx,
)

MIB = 1024 * 1024
LIMITS = ExtractionLimits(cpu_time=20, time=3600)
"""The default is a longer CPU time, with the same results."""
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class HostileFile:
    """One file. `result`: the beginning of `code: message`, or of the text."""

    kind: str
    what: str
    name: str
    make: Callable[[], bytes]
    result: str


def reading_processes() -> list[psutil.Process]:
    """The processes that read a file for this one. Others below this one do not count: those of a
    deployment, and those of a browser, which are no longer alive at times."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "features.retrieval.extract.child" in child.cmdline():
                found.append(child)
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a file."""

    result: str
    seconds: float
    """Of CPU."""
    memory: int
    """Most bytes of resident memory of the process that read it."""


async def read(file: HostileFile, folder: Path, limits: ExtractionLimits) -> Outcome:
    """Reads a file as a worker does. Only one is read at a time."""
    path = folder / "file"
    await asyncio.to_thread(_write, path, file)
    watch = _Watch()
    watching = asyncio.create_task(watch.run())
    result = ""
    try:
        with path.open("rb") as content:
            async with extract(content, file.name, limits) as pieces:
                async for piece in pieces:
                    result = result or piece[:80]
    except ExtractionFailed as failure:
        result = f"{failure.code}: {failure.message}"
    watching.cancel()
    await asyncio.wait([watching])
    return Outcome(result, watch.seconds, watch.memory)


def _write(path: Path, file: HostileFile) -> None:
    path.write_bytes(file.make())


class _Watch:
    """Follows the child of this process. Its own account would have the memory of its parent,
    which it shares for a moment."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.memory = 0

    async def run(self) -> None:
        """Looks until it is cancelled."""
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        while True:
            for number in _read(children).split():
                with suppress(psutil.Error, OSError):
                    self._look(psutil.Process(int(number)))
            await asyncio.sleep(0.02)

    def _look(self, child: psutil.Process) -> None:
        if "features.retrieval.extract.child" not in child.cmdline():
            return
        status = Path(f"/proc/{child.pid}/status").read_text()
        times = child.cpu_times()
        self.seconds = max(self.seconds, times.user + times.system)
        for line in status.splitlines():
            if line.startswith("VmHWM"):
                self.memory = max(self.memory, int(line.split()[1]) * 1024)


def _read(path: Path) -> str:
    return path.read_text()


def _zeros(size: int) -> bytes:
    """A deflated stream of this many zeros, a multiple of 64 MiB. Quick: one block is repeated."""
    block = 64 * MIB
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = deflate.compress(bytes(block)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return first * (size // block) + zlib.compressobj(9, zlib.DEFLATED, -15).flush()


def _docx_with(name: str, stored: bytes, declared: int) -> bytes:
    """A document with one more part, or another main part: `stored` is taken for deflated, and
    declares that it unpacks to so many bytes."""
    content = BytesIO(docx(paragraph("A document.")) if name != "word/document.xml" else b"")
    if name == "word/document.xml":
        content = BytesIO(package("wordprocessingml.document", name, {}))
    with ZipFile(content, "a") as archive:
        archive.writestr(name, stored)
        entry = archive.getinfo(name)
        entry.compress_type, entry.file_size = ZIP_DEFLATED, declared
    return content.getvalue()


def _raw(content: bytes) -> bytes:
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    return deflate.compress(content) + deflate.flush()


def _nested_documents() -> bytes:
    inner = b"end"
    for _ in range(50):
        content = BytesIO(docx(paragraph("A document.")))
        with ZipFile(content, "a", ZIP_DEFLATED) as archive:
            archive.writestr("word/embeddings/inner.docx", inner)
        inner = content.getvalue()
    return inner


def _overlapping() -> bytes:
    """20 000 entries in the directory that are all the same bytes, which unpack to 4 MB."""
    content = BytesIO(docx(paragraph("A document.")))
    with ZipFile(content, "a", ZIP_DEFLATED) as archive:
        archive.writestr("same.xml", b"<a>" + bytes(4 * MIB))
        first = archive.getinfo("same.xml")
        for number in range(15_000):
            twin = type(first)(f"{number}.xml")
            twin.header_offset, twin.CRC = first.header_offset, first.CRC
            twin.compress_type = first.compress_type
            twin.file_size, twin.compress_size = first.file_size, first.compress_size
            archive.filelist.append(twin)
    return content.getvalue()


def _many_entries(count: int) -> bytes:
    """A ZIP file whose directory has `count` entries without content."""
    local = b"PK\x03\x04" + struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0, 0, 0, 0, 8, 0) + b"00000000"
    entry = "PK\x01\x02".encode("latin-1") + struct.pack("<HHHHHHIIIHHHHHII", *[0] * 9, 8, *[0] * 6)
    directory = b"".join(entry[:46] + b"%08d" % n for n in range(count))
    end = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, len(directory), 38)
    locator = struct.pack("<IIQI", 0x07064B50, 0, 38 + len(directory), 1)
    tail = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    return local + directory + end + locator + tail


def _docx_with_entity(declaration: str) -> bytes:
    document = (
        f"<!DOCTYPE d [{declaration}]>"
        '<w:document xmlns:w="w"><w:p><w:t>&e;</w:t></w:p></w:document>'
    )
    return package(
        "wordprocessingml.document", "word/document.xml", {"word/document.xml": document}
    )


def _laughs() -> str:
    levels = ['<!ENTITY l0 "ha">']
    levels += [f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12)]
    return "".join([*levels, '<!ENTITY e "&l11;">'])


def _page_loop() -> bytes:
    return pdf(
        [
            b"<</Type /Catalog /Pages 2 0 R>>",
            b"<</Type /Pages /Kids [3 0 R 2 0 R] /Count 2 /Parent 3 0 R>>",
            b"<</Type /Pages /Kids [2 0 R 3 0 R] /Count 2 /Parent 2 0 R>>",
        ]
    )


def _million_pages() -> bytes:
    count = 1_000_000
    kids = b" ".join(b"%d 0 R" % (3 + n) for n in range(count))
    page = b"<</Type /Page /Parent 2 0 R>>"
    return pdf(
        [
            b"<</Type /Catalog /Pages 2 0 R>>",
            b"<</Type /Pages /Kids [%b] /Count %d>>" % (kids, count),
            *[page] * count,
        ]
    )


def _flate_bomb() -> bytes:
    content = zlib.compress(bytes(512 * MIB), 9)
    content = zlib.compress(content, 9)
    return one_page(stream(content, b"/Filter [/FlateDecode /FlateDecode]"))


def _object_stream() -> bytes:
    count = 2_000_000
    content = zlib.compress(b" ".join(b"%d 0" % n for n in range(9, 9 + count)) + b" null", 9)
    entries = b"/Type /ObjStm /N %d /First %d /Filter /FlateDecode" % (count, 16_000_000)
    return one_page(stream(b""), b"/Font 5 0 R", stream(content, entries))


def _deep_array() -> bytes:
    return one_page(stream(b"[" * 200_000), b"/A " + b"[" * 200_000 + b"]" * 200_000)


def _encrypted(password: str) -> bytes:
    writer = PdfWriter(clone_from=BytesIO(pages_with_text(["A page."])))
    writer.encrypt(password, "owner", algorithm="AES-256")
    content = BytesIO()
    writer.write(content)
    return content.getvalue()


def _garbage(start: bytes) -> bytes:
    return start + random.Random(7).randbytes(2 * MIB)


def _font_map() -> bytes:
    mapping = b"1 begincodespacerange <0000> <FFFF> endcodespacerange\n" + (
        b"100 beginbfrange\n" + b"<00000000> <FFFFFFFF> <0041>\n" * 100 + b"endbfrange\n"
    )
    return one_page(
        stream(b"BT /F 12 Tf (A page.) Tj ET"),
        b"/Font <</F 5 0 R>>",
        b"<</Type /Font /Subtype /Type0 /BaseFont /X /ToUnicode 6 0 R>>",
        stream(mapping),
    )


def _form_loop() -> bytes:
    form = b"/Type /XObject /Subtype /Form /Resources <</XObject <</X 5 0 R>>>>"
    return one_page(stream(b"/X Do"), b"/XObject <</X 5 0 R>>", stream(b"/X Do /X Do", form))


def _table_loop() -> bytes:
    content = pages_with_text(["A page."])
    start = content.rindex(b"xref\n0 ")
    return content.replace(b"trailer\n<<", b"trailer\n<</Prev %d " % start)


def _many_operators() -> bytes:
    content = b"BT /F 12 Tf " + b"(a) Tj " * 5_000_000 + b"ET"
    return one_page(
        stream(zlib.compress(content, 9), b"/Filter /FlateDecode"),
        b"/Font <</F 5 0 R>>",
        b"<</Type /Font /Subtype /Type1 /BaseFont /Helvetica>>",
    )


def _shared_string() -> bytes:
    strings = {"xl/sharedStrings.xml": f"<sst><si><t>{'a' * MIB}</t></si></sst>"}
    return xlsx('<row><c t="s"><v>0</v></c></row>' * 100_000, parts=strings)


def _slides_repeated() -> bytes:
    content = pptx(["A slide. " * 10])
    with ZipFile(BytesIO(content)) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    parts["ppt/presentation.xml"] = parts["ppt/presentation.xml"].replace(
        '<p:sldId id="256" r:id="s0"/>', '<p:sldId r:id="s0"/>' * 20_000
    )
    kept = {name: text for name, text in parts.items() if name.startswith("ppt/")}
    return package("presentationml.presentation", "ppt/presentation.xml", kept)


_BROKEN = "invalid_file: The file could not be parsed. It may be damaged."
_LARGE = "invalid_file: The file could not be parsed because it is too large"
_MEMORY = "invalid_file: The file could not be parsed because that needs too much memory."
_TIME = "invalid_file: The file could not be parsed because that takes too long."
_LOCKED = "invalid_file: The file could not be parsed because it is encrypted with a password."
_NO_TEXT = "invalid_file: The file has no text that could be extracted."
_TYPE = "unsupported_file: The file type is not supported"
_EMPTY = "invalid_file: The file could not be parsed because it is empty."
_ENTITY = '<!ENTITY e SYSTEM "{}">'

HOSTILE = [
    HostileFile(*values)
    for values in (
        (
            "DOCX",
            "10 GiB of zeros",
            "a.docx",
            lambda: _docx_with("word/a.xml", _zeros(10 * GIB), 10 * GIB),
            _LARGE,
        ),
        (
            "DOCX",
            "10 GiB that declare 64 MiB",
            "a.docx",
            lambda: _docx_with("word/document.xml", _zeros(10 * GIB), 64 * MIB),
            _BROKEN,
        ),
        (
            "DOCX",
            "200 MiB of text",
            "a.docx",
            lambda: _docx_with(
                "word/document.xml",
                _raw(b"<w:p><w:t>" + b"text " * (40 * MIB) + b"</w:t></w:p>"),
                200 * MIB,
            ),
            _LARGE,
        ),
        ("DOCX", "50 documents, one inside the other", "a.docx", _nested_documents, "A document."),
        ("DOCX", "15 000 entries that overlap", "a.docx", _overlapping, _LARGE),
        ("DOCX", "1 000 000 entries", "a.docx", lambda: _many_entries(1_000_000), _MEMORY),
        (
            "DOCX",
            "entities in entities (billion laughs)",
            "a.docx",
            lambda: _docx_with_entity(_laughs()),
            _BROKEN,
        ),
        (
            "DOCX",
            "an entity that is a file",
            "a.docx",
            lambda: _docx_with_entity(_ENTITY.format("file:///etc/passwd")),
            _BROKEN,
        ),
        (
            "DOCX",
            "an entity that is a URL",
            "a.docx",
            lambda: _docx_with_entity(_ENTITY.format("http://127.0.0.1:9/")),
            _BROKEN,
        ),
        (
            "DOCX",
            "1 000 000 elements, one inside the other",
            "a.docx",
            lambda: docx("<w:r>" * 1_000_000 + "<w:t>deep</w:t>" + "</w:r>" * 1_000_000),
            "deep",
        ),
        ("PPTX", "one slide, listed 20 000 times", "a.pptx", _slides_repeated, "A slide."),
        (
            "XLSX",
            "declares 1 048 576 x 16 384 cells",
            "a.xlsx",
            lambda: xlsx(cell("A cell."), "A1:XFD1048576"),
            "One\nA cell.",
        ),
        (
            "XLSX",
            "a cell at the far end",
            "a.xlsx",
            lambda: xlsx('<row r="1048576"><c r="XFD1048576"><v>7</v></c></row>'),
            "One",
        ),
        (
            "XLSX",
            "a row with the number 10^12",
            "a.xlsx",
            lambda: xlsx('<row r="1000000000000"><c><v>7</v></c></row>'),
            "One\n7",
        ),
        (
            "XLSX",
            "500 000 empty cells at the far end",
            "a.xlsx",
            lambda: xlsx('<row><c r="XFD1"/></row>' * 500_000),
            "One",
        ),
        ("XLSX", "1 MiB that 100 000 cells share", "a.xlsx", _shared_string, _LARGE),
        ("XLSX", "100 MiB in one cell", "a.xlsx", lambda: xlsx(cell("a" * 100 * MIB)), _LARGE),
        (
            "XLSX",
            "32 KiB in each of 5 000 cells",
            "a.xlsx",
            lambda: xlsx(cell("a" * 32768) * 5000),
            _LARGE,
        ),
        ("PDF", "a page tree that contains itself", "a.pdf", _page_loop, _BROKEN),
        ("PDF", "1 000 000 pages", "a.pdf", _million_pages, _BROKEN),
        ("PDF", "512 MiB in 1 KiB, packed twice", "a.pdf", _flate_bomb, _NO_TEXT),
        ("PDF", "an object stream of 2 000 000 objects", "a.pdf", _object_stream, _NO_TEXT),
        ("PDF", "200 000 arrays, one inside the other", "a.pdf", _deep_array, _NO_TEXT),
        ("PDF", "encrypted with a password", "a.pdf", lambda: _encrypted("secret"), _LOCKED),
        ("PDF", "encrypted without one", "a.pdf", lambda: _encrypted(""), "A page."),
        ("PDF", "2 MiB of random bytes", "a.pdf", lambda: _garbage(b"%PDF-1.7\n"), _BROKEN),
        ("PDF", "a font that maps 10^11 characters", "a.pdf", _font_map, _BROKEN),
        ("PDF", "a drawing that contains itself", "a.pdf", _form_loop, _NO_TEXT),
        ("PDF", "a table of objects that continues in itself", "a.pdf", _table_loop, "A page."),
        ("PDF", "5 000 000 operators on a page", "a.pdf", _many_operators, _BROKEN),
        (
            "HTML",
            "1 000 000 elements, one inside the other",
            "a.html",
            lambda: b"<div>" * 1_000_000 + b"deep",
            "deep",
        ),
        (
            "HTML",
            "a comment of 100 MiB without an end",
            "a.html",
            lambda: b"<html><!--" + b"a-" * (50 * MIB),
            _NO_TEXT,
        ),
        (
            "HTML",
            "100 000 attributes",
            "a.html",
            lambda: b"<html><p " + b"a=b " * 100_000 + b">deep",
            "deep",
        ),
        (
            "JSON",
            "1 000 000 arrays, one inside the other",
            "a.json",
            lambda: b"[" * 1_000_000 + b"]" * 1_000_000,
            "[[",
        ),
        ("CSV", "one line of 100 MB", "a.csv", lambda: b"a,b," * 25_000_000, _LARGE),
        ("CSV", "one line of 30 MB", "a.csv", lambda: b"a,b," * 7_500_000, "a,b,"),
        ("text", "U+0000 between the letters", "a.txt", lambda: b"some \0 text\n" * 1000, _TYPE),
        ("text", "UTF-16", "a.txt", lambda: ("text\n" * 1000).encode("utf-16"), "text\n"),
        (
            "text",
            "not UTF-8 in its last byte",
            "a.txt",
            lambda: b"text\n" * 200_000 + b"\xff",
            "text\n",
        ),
        ("text", "a program named .txt", "a.txt", lambda: Path(sys.executable).read_bytes(), _TYPE),
        ("text", "random bytes named .md", "a.md", lambda: _garbage(b""), _TYPE),
        ("text", "empty", "a.txt", lambda: b"", _EMPTY),
        ("text", "100 MB of space", "a.txt", lambda: b" \n" * 50_000_000, _LARGE),
        ("text", "10 MB of space", "a.txt", lambda: b" \n" * 5_000_000, _NO_TEXT),
    )
]


async def _print_table(names: list[str]) -> None:
    print("| kind | file | result | CPU, s | memory, MB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for file in HOSTILE:
            if names and not any(name in f"{file.kind} {file.what}" for name in names):
                continue
            began = time.monotonic()
            outcome = await read(file, Path(folder), LIMITS)
            shown = " ".join(outcome.result.split())
            match = "" if outcome.result.lstrip("\n").startswith(file.result) else " !!"
            print(
                f"| {file.kind} | {file.what} | {shown}{match} | {outcome.seconds:.1f} "
                f"| {outcome.memory / 1e6:.0f} |",
                flush=True,
            )
            print(time.monotonic() - began, file=sys.stderr)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    asyncio.run(_print_table(sys.argv[1:]))
