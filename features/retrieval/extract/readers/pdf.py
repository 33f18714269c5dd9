"""PDF, by pypdf."""

from collections.abc import Iterator
from typing import BinaryIO

from pypdf import PasswordType, PdfReader

from features.retrieval.extract.extraction_failed import DAMAGED, ExtractionFailed


def read_pdf(file: BinaryIO) -> Iterator[str]:
    """The text of each page. A page that cannot be read is left out, unless it is so with all.

    Raises ExtractionFailed if the file has a password, and what the library raises.
    """
    reader = PdfReader(file)
    if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
        raise ExtractionFailed(
            "invalid_file", "The file could not be parsed because it is encrypted with a password."
        )
    failure: Exception | None = None
    has_pages = False
    for page in reader.pages:
        try:
            text = page.extract_text()
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - what the library raises for a damaged page
            failure = error
            continue
        has_pages = True
        yield text + "\n\n"
    if failure is not None and not has_pages:
        raise ExtractionFailed("invalid_file", DAMAGED, f"{type(failure).__name__}: {failure}")
