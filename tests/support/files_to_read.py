"""Files of each kind that a vector store reads, and hostile ones. Each is made by a few lines."""

from collections.abc import Iterable
from io import BytesIO
from zipfile import ZIP_DEFLATED, ZipFile

MAIN = "http://schemas.openxmlformats.org"
_RELATIONS = f"{MAIN}/package/2006/relationships"
_DOCUMENT = f"{MAIN}/officeDocument/2006/relationships"
_WORD = f"{MAIN}/wordprocessingml/2006/main"
_DRAWING = f"{MAIN}/drawingml/2006/main"
_SLIDES = f"{MAIN}/presentationml/2006/main"
_SHEETS = f"{MAIN}/spreadsheetml/2006/main"
_TYPES = "application/vnd.openxmlformats-officedocument"


def package(kind: str, main: str, parts: dict[str, str]) -> bytes:
    """An Office file whose main part is of content type `kind`."""
    content = BytesIO()
    with ZipFile(content, "w", ZIP_DEFLATED) as archive:
        archive.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{MAIN}/package/2006/content-types">'
            f'<Override PartName="/{main}" ContentType="{_TYPES}.{kind}.main+xml"/></Types>',
        )
        archive.writestr("_rels/.rels", relations({"r1": ("officeDocument", main)}))
        for name, text in parts.items():
            archive.writestr(name, text)
    return content.getvalue()


def relations(targets: dict[str, tuple[str, str]]) -> str:
    """A part with relations: id -> kind and target."""
    each = "".join(
        f'<Relationship Id="{key}" Type="{_DOCUMENT}/{kind}" Target="{target}"/>'
        for key, (kind, target) in targets.items()
    )
    return f'<Relationships xmlns="{_RELATIONS}">{each}</Relationships>'


def docx(body: str, parts: dict[str, str] | None = None) -> bytes:
    """A document with this body in WordprocessingML."""
    document = f'<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>'
    return package(
        "wordprocessingml.document",
        "word/document.xml",
        {"word/document.xml": document} | (parts or {}),
    )


def paragraph(text: str) -> str:
    """A paragraph in WordprocessingML."""
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def pptx(slides: Iterable[str], notes: str = "") -> bytes:
    """A presentation with one text on each slide, and notes on the first."""
    texts = list(slides)
    slide_ids = "".join(f'<p:sldId id="{256 + n}" r:id="s{n}"/>' for n in range(len(texts)))
    parts = {
        # the slides are numbered against their order
        f"ppt/slides/slide{len(texts) - n}.xml": _slide(text)
        for n, text in enumerate(texts)
    }
    targets = {f"s{n}": ("slide", f"slides/slide{len(texts) - n}.xml") for n in range(len(texts))}
    if notes:
        parts["ppt/notesSlides/notes.xml"] = _slide(notes)
        first = f"ppt/slides/_rels/slide{len(texts)}.xml.rels"
        parts[first] = relations({"n": ("notesSlide", "../notesSlides/notes.xml")})
    return package(
        "presentationml.presentation",
        "ppt/presentation.xml",
        {
            "ppt/presentation.xml": f'<p:presentation xmlns:p="{_SLIDES}" xmlns:r="{_DOCUMENT}">'
            f"<p:sldIdLst>{slide_ids}</p:sldIdLst></p:presentation>",
            "ppt/_rels/presentation.xml.rels": relations(targets),
            **parts,
        },
    )


def _slide(text: str) -> str:
    return (
        f'<p:sld xmlns:p="{_SLIDES}" xmlns:a="{_DRAWING}"><p:txBody><a:p><a:r><a:t>{text}'
        "</a:t></a:r></a:p></p:txBody></p:sld>"
    )


def pdf(objects: Iterable[bytes]) -> bytes:
    """A PDF of these objects, which are numbered from 1; the first is the catalog."""
    content = bytearray(b"%PDF-1.7\n")
    places = []
    for number, each in enumerate(objects, 1):
        places.append(len(content))
        content += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    start = len(content)
    content += b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1)
    content += b"".join(b"%010d 00000 n \n" % place for place in places)
    content += b"trailer\n<</Size %d /Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        len(places) + 1,
        start,
    )
    return bytes(content)


def stream(content: bytes, entries: bytes = b"") -> bytes:
    """A stream object."""
    return b"<<%b /Length %d>>\nstream\n%b\nendstream" % (entries, len(content), content)


def one_page(content: bytes, resources: bytes = b"", *more: bytes) -> bytes:
    """A PDF of one page whose content is object 4; `more` is numbered from 5."""
    return pdf(
        [
            b"<</Type /Catalog /Pages 2 0 R>>",
            b"<</Type /Pages /Kids [3 0 R] /Count 1>>",
            b"<</Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources <<%b>>>>"
            % resources,
            content,
            *more,
        ]
    )


def pages_with_text(texts: list[str]) -> bytes:
    """A PDF with one line on each page."""
    count = len(texts)
    kids = b" ".join(b"%d 0 R" % (4 + 2 * n) for n in range(count))
    objects = [
        b"<</Type /Catalog /Pages 2 0 R>>",
        b"<</Type /Pages /Kids [%b] /Count %d>>" % (kids, count),
        b"<</Type /Font /Subtype /Type1 /BaseFont /Helvetica>>",
    ]
    for number, text in enumerate(texts):
        objects.append(
            b"<</Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents %d 0 R "
            b"/Resources <</Font <</F 3 0 R>>>>>>" % (5 + 2 * number)
        )
        objects.append(stream(b"BT /F 12 Tf 50 700 Td (%b) Tj ET" % text.encode()))
    return pdf(objects)


def xlsx(rows: str, dimension: str = "A1", parts: dict[str, str] | None = None) -> bytes:
    """A workbook of one sheet with these rows in SpreadsheetML, and with more parts."""
    return package(
        "spreadsheetml.sheet",
        "xl/workbook.xml",
        {
            "xl/workbook.xml": f'<workbook xmlns="{_SHEETS}" xmlns:r="{_DOCUMENT}"><sheets>'
            '<sheet name="One" sheetId="1" r:id="s1"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": relations({"s1": ("worksheet", "worksheets/sheet1.xml")}),
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{_SHEETS}">'
            f'<dimension ref="{dimension}"/><sheetData>{rows}</sheetData></worksheet>',
            **(parts or {}),
        },
    )


def cell(text: str) -> str:
    """A row of one cell in SpreadsheetML."""
    return f'<row><c t="inlineStr"><is><t>{text}</t></is></c></row>'


def slow_page() -> bytes:
    """A PDF of one page of hundreds of thousands of texts, which the library reads in minutes."""
    texts = b"BT /F 9 Tf " + b"1 1 Td (a) Tj " * 400_000 + b"ET"
    return one_page(
        b"<</Length %d>>stream\n%b\nendstream" % (len(texts), texts),
        b"/Font <</F 5 0 R>>",
        b"<</Type /Font /Subtype /Type1 /BaseFont /Helvetica>>",
    )
