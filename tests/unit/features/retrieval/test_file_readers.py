"""The text of each kind of file that a vector store takes, and what is refused."""

import codecs
import re
import time
from collections.abc import Callable
from datetime import date
from io import BytesIO
from pathlib import PurePath
from zipfile import ZipFile

import pytest
from openpyxl import Workbook

from features.retrieval.extract.child import text_pieces
from features.retrieval.extract.child_protocol import DAMAGED, ExtractionFailed, ExtractionLimits
from features.retrieval.extract.reading import read_text
from tests.support.files_to_read import (
    cell,
    docx,
    pages_with_text,
    paragraph,
    pptx,
    relations,
    xlsx,
)
from tests.support.hostile_files import HOSTILE

_GERMAN = "Straßen, Züge und Flüsse über größeren Höhen für Müller und Söhne.\n" * 8


def text_of(content: bytes, ending: str = "", limits: ExtractionLimits | None = None) -> str:
    limits = limits or ExtractionLimits()
    texts = read_text(BytesIO(content), ending, limits)
    return b"".join(text_pieces(texts, limits.text)).decode()


def refusal(content: bytes, ending: str = "", limits: ExtractionLimits | None = None) -> str:
    with pytest.raises(ExtractionFailed) as failure:
        text_of(content, ending, limits)
    return f"{failure.value.code}: {failure.value.message}"


@pytest.mark.parametrize(
    "content",
    [
        "naïve\r\ntext\r".encode(),
        codecs.BOM_UTF8 + "naïve\ntext\n".encode(),
        "naïve\ntext\n".encode("utf-16"),
        codecs.BOM_UTF16_BE + "naïve\ntext\n".encode("utf-16-be"),
        "naïve\ntext\n".encode("utf-16-le"),
        "naïve\ntext\n".encode("utf-32"),
    ],
)
def test_text_in_any_unicode_encoding(content: bytes) -> None:
    assert text_of(content, ".c") == "naïve\ntext\n"


def test_text_in_an_older_encoding() -> None:
    assert text_of(_GERMAN.encode("latin-1"), ".tex") == _GERMAN


def test_a_page_shows_what_a_browser_shows() -> None:
    page = (
        "<!DOCTYPE html><html><head><title>Report</title><style>p {}</style></head><body><h1>One"
        "</h1><p>Two &amp;\n  <b>three</b><script>if (a<b) hide()</script></p><ul><li>x<li>y</ul>"
        "<table><tr><td>1</td><td>2</td></tr></table><pre>a\n  b</pre><!-- no --></body></html>"
    )
    assert text_of(page.encode()) == "Report\nOne\nTwo & three\nx\ny\n1\t2\na\n  b\n"


@pytest.mark.parametrize("unclosed", ["<!--", "<a ", '<a b="', "<x", "<![CDATA[", "</", "<?"])
def test_a_page_with_what_never_ends_takes_no_longer_than_others(unclosed: str) -> None:
    """The parser's own end takes the square of it: half a minute, and hours for a megabyte."""
    began = time.process_time()
    assert text_of(("<p>seen</p>" + unclosed * 50_000).encode(), ".html") == "seen\n"
    assert time.process_time() - began < 3


def test_a_sign_at_the_end_of_a_page_is_text() -> None:
    assert text_of(b"<html>1 &lt; 2 &amp").strip() == "1 < 2 &"
    assert text_of(b"<html>3 <").strip() == "3 <"


def test_a_page_in_the_encoding_that_it_declares() -> None:
    page = f'<html><head><meta charset="windows-1252"></head><p>{_GERMAN}</p></html>'
    assert "größeren Höhen" in text_of(page.encode("cp1252"), ".html")


def test_json_is_indexed_with_its_characters() -> None:
    text = r'{"a": "caf\u00e9 \ud83d\ude00 \\u00e9 \n \ud83d \u0007"}'
    assert text_of(text.encode(), ".json") == r'{"a": "café 😀 \\u00e9 \n \ud83d \u0007"}'


def test_escapes_of_json_are_whole_wherever_a_block_ends() -> None:
    text = r"\ud83d\ude00" * 6_000
    for shift in range(12):
        assert text_of(b"x" * shift + text.encode(), ".json") == "x" * shift + "😀" * 6_000


def test_a_document() -> None:
    table = (
        f"<w:tbl><w:tr><w:tc>{paragraph('a')}</w:tc><w:tc>{paragraph('b')}</w:tc></w:tr></w:tbl>"
    )
    moved = f"<w:moveFrom>{paragraph('moved')}</w:moveFrom>"
    tabs = (
        "<w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr>"
        "<w:r><w:t>x</w:t><w:tab/><w:t>y</w:t></w:r></w:p>"
    )
    notes = {
        "word/_rels/document.xml.rels": relations({"n": ("footnotes", "footnotes.xml")}),
        "word/footnotes.xml": f'<w:footnotes xmlns:w="w">{paragraph("a note")}</w:footnotes>',
    }
    content = docx(paragraph("One &amp; two") + table + moved + tabs, notes)
    assert text_of(content, ".docx") == "One & two\na \tb \t\nx\ty\na note\n"


def test_slides_come_in_their_order_with_their_notes() -> None:
    assert text_of(pptx(["First", "Second"], "Say hello")) == "First\nSay hello\n\nSecond\n\n"


def test_a_workbook() -> None:
    book = Workbook()
    first = book.active
    assert first is not None
    first.title = "Prices"
    first.append(["name", "price", "since", "sold"])
    first["A5"], first["B5"], first["C5"], first["D5"] = "nut", 2.0, date(2024, 5, 6), True
    content = BytesIO()
    book.create_sheet("More").append([1.5, "=1+1"])
    book.save(content)
    assert text_of(content.getvalue(), ".xlsx") == (
        "Prices\nname\tprice\tsince\tsold\nnut\t2\t2024-05-06\tTRUE\n\nMore\n1.5\n\n"
    )


STYLES = """<styleSheet xmlns="main"><fills><fill/><fill><extLst><ext uri="u"/></extLst></fill>
</fills><numFmts><numFmt numFmtId="170" formatCode="[$-409]d/m/yy;@"/><numFmt numFmtId="171"
formatCode="[h]:mm"/><numFmt formatCode='"day" 0'/></numFmts><cellStyleXfs><xf numFmtId="14"/>
</cellStyleXfs><cellXfs><xf/><xf numFmtId="14"/><xf numFmtId="170"/><xf numFmtId="171"/>
<xf numFmtId="99999"/></cellXfs></styleSheet>"""
STRINGS = """<sst><si><t>plain</t></si><si><r><rPr><b/></rPr><t>rich </t></r><r><t>text</t></r>
<rPh sb="0" eb="1"><t>said</t></rPh></si><si/></sst>"""
CELLS: list[tuple[str, str]] = [
    ('<c t="s"><v>0</v></c><c t="s"><v>1</v></c>', "plain\trich text"),
    ('<c t="s"><v>2</v></c><c t="s"><v>99</v></c><c t="s"/><c><v>1</v></c>', "\t\t\t1"),
    ('<c r="C1"><v>3</v></c><c r="E1"><v>5</v></c>', "\t\t3\t\t5"),
    ('<c r="b7"><v>3</v></c><c r="A1"><v>5</v></c><c r="?"><v>6</v></c>', "\t3\t5\t6"),
    ('<c s="1"><v>45351</v></c><c s="2"><v>45351.5</v></c>', "2024-02-29\t2024-02-29T12:00:00"),
    ('<c s="1"><v>0.5</v></c><c s="3"><v>1.5</v></c>', "12:00:00\t36:00:00"),
    ('<c s="1"><v>-5</v></c><c s="1"><v>1e12</v></c><c s="1"><v>x</v></c>', "-5\t1e12\tx"),
    ('<c s="77"><v>7.0</v></c><c s="4"><v>8</v></c>', "7\t8"),
    ('<c t="d"><v>2024-05-06</v></c><c t="e"><v>#DIV/0!</v></c>', "2024-05-06\t#DIV/0!"),
    ('<c t="b"><v>1</v></c><c t="b"><v>0</v></c>', "TRUE\tFALSE"),
    ('<c><f>1+1</f></c><c t="str"><f>"a"</f><v>a</v></c>', "\ta"),
    ('<c t="inlineStr"><is><r><t>in</t></r><r><t>line</t></r></is></c>', "inline"),
    ('<c t="inlineStr"><is><t>a_x000A_b _x005F_x</t></is></c>', "a\nb _x"),
    ('<x:c xmlns:x="x"><x:v>12345678901234567890</x:v></x:c>', "12345678901234567890"),
]


def test_each_cell_of_a_workbook() -> None:
    parts = {"xl/Styles.xml": STYLES, "xl/SharedStrings.xml": STRINGS}
    rows = "".join(f'<row r="99999999999">{cells}</row>' for cells, _ in CELLS)
    lines = "".join(f"{line}\n" for _, line in CELLS)
    assert text_of(xlsx(rows, parts=parts), ".xlsx") == f"One\n{lines}\n"


def written(changed: Callable[[str, str], tuple[str, str] | None], kind: str = "xlsx") -> bytes:
    """An Office file whose parts are left out, renamed or changed."""
    original = {
        "xlsx": xlsx('<row><c t="inlineStr"><is><t>text</t></is></c></row>'),
        "docx": docx(paragraph("text")),
        "pptx": pptx(["text"]),
    }[kind]
    content = BytesIO()
    with ZipFile(BytesIO(original)) as source, ZipFile(content, "w") as target:
        for name in source.namelist():
            if (part := changed(name, source.read(name).decode())) is not None:
                target.writestr(*part)
    return content.getvalue()


ODD_PACKAGES: dict[str, Callable[[str, str], tuple[str, str] | None]] = {
    "capitals": lambda name, text: (name.upper(), text),
    "small letters": lambda name, text: (name.lower(), text),
    "backslashes": lambda name, text: (name.replace("/", "\\"), text),
    "a leading slash": lambda name, text: (f"/{name}", text),
    "backslashes in relations": lambda name, text: (
        name,
        re.sub('Target="([^"]*)"', lambda found: found[0].replace("/", "\\"), text),
    ),
    "absolute targets": lambda name, text: (
        name,
        re.sub('Target="(?=worksheets|slides/)', 'Target="/xl/', text)
        if "xl/_rels" in name
        else text,
    ),
    "no list of types": lambda name, text: None if "Types" in name else (name, text),
    "no first relations": lambda name, text: None if name == "_rels/.rels" else (name, text),
    "types of other parts only": lambda name, text: (name, text.replace("<Override ", "<Other ")),
    "the strict namespaces": lambda name, text: (
        name,
        text.replace("http://schemas.openxmlformats.org/", "http://purl.oclc.org/ooxml/"),
    ),
    "macros": lambda name, text: (name, text.replace(".main+xml", ".macroEnabled.main+xml")),
    "a template": lambda name, text: (name, text.replace(".sheet.main", ".template.main")),
    "UTF-16": lambda name, text: (name, text) if "Types" in name else (name, f"\ufeff{text}"),
}


@pytest.mark.parametrize("kind", ["xlsx", "docx", "pptx"])
@pytest.mark.parametrize("name", ODD_PACKAGES)
def test_packages_of_other_programs_are_read(name: str, kind: str) -> None:
    assert "text\n" in text_of(written(ODD_PACKAGES[name], kind), f".{kind}")


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("xl/styles.xml", "<styleSheet"),
        ("xl/styles.xml", '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'),
        ("xl/theme/theme1.xml", "broken"),
        ("docProps/core.xml", "<broken"),
        ("xl/calcChain.xml", ""),
    ],
)
def test_what_a_workbook_has_beside_its_values_may_be_broken(part: str, text: str) -> None:
    assert text_of(xlsx("<row><c><v>7</v></c></row>", parts={part: text}), ".xlsx") == "One\n7\n\n"


def test_a_part_that_many_sheets_name_is_read_once() -> None:
    """A file of 2 KB would take minutes otherwise."""
    sheets = '<sheet name="One" r:id="s1"/>' * 10_000
    book = f'<workbook xmlns:r="r"><sheets>{sheets}</sheets></workbook>'
    row = cell("x" * 10_000)
    assert text_of(xlsx(row, parts={"xl/workbook.xml": book})).count("x" * 10_000) == 1


def test_empty_cells_before_a_far_one_count_as_text() -> None:
    rows = '<row><c r="XFD1"><v>1</v></c></row>' * 100
    assert "more than 1 MiB of text" in refusal(xlsx(rows), limits=ExtractionLimits(text=2**20))


def test_a_workbook_without_relations_has_the_usual_names() -> None:
    content = written(lambda name, text: None if "xl/_rels" in name else (name, text))
    assert text_of(content, ".xlsx") == "One\ntext\n\n"


def test_the_pages_of_a_pdf() -> None:
    assert text_of(pages_with_text(["Page one", "Page two"])) == "Page one\n\nPage two\n\n"


def test_source_code_that_names_a_signature_is_text() -> None:
    assert text_of(b'MAGIC = b"%PDF-"\n', ".py") == 'MAGIC = b"%PDF-"\n'


@pytest.mark.parametrize(
    ("content", "ending", "message"),
    [
        (b"", ".txt", "invalid_file: The file could not be parsed because it is empty."),
        (b" \n\t\n", ".txt", "invalid_file: The file has no text that could be extracted."),
        (b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 99, ".txt", "unsupported_file: "),
        (b"text with\0a zero", ".txt", "unsupported_file: "),
        (bytes(range(128, 256)) * 40, ".txt", "unsupported_file: "),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), ".png", "unsupported_file: "),
        (b"{\\rtf1 text}", ".rtf", "unsupported_file: "),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), ".docx", "unsupported_file: "),
    ],
)
def test_what_is_refused(content: bytes, ending: str, message: str) -> None:
    assert refusal(content, ending).startswith(message)


def test_more_text_than_the_limit() -> None:
    limits = ExtractionLimits(text=100)
    assert text_of(b"x" * 100, limits=limits) == "x" * 100
    assert "more than 100 bytes of text" in refusal(b"x" * 101, limits=limits)


QUICK = frozenset(
    (
        *("entities in entities (billion laughs)", "an entity that is a file"),
        *("declares 1 048 576 x 16 384 cells", "a page tree that contains itself"),
        *("encrypted with a password", "a drawing that contains itself"),
        *("a font that maps 10^11 characters", "not UTF-8 in its last byte"),
    )
)
"""Some of the files of tests/integration/retrieval/test_hostile_files.py."""


@pytest.mark.parametrize("name", sorted(QUICK))
def test_what_a_hostile_file_ends_with(name: str) -> None:
    [file] = [each for each in HOSTILE if each.what == name]
    try:
        result = text_of(file.make(), PurePath(file.name).suffix)
    except ExtractionFailed as failure:
        result = f"{failure.code}: {failure.message}"
    except Exception:  # noqa: BLE001 - what libraries raise
        result = f"invalid_file: {DAMAGED}"
    assert result.lstrip("\n").startswith(file.result)
