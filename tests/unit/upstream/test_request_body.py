"""Bodies with files: the files' data is written into them piece by piece."""

import base64
import json
import os
from typing import Any

import pytest

from worker.outbound.download import FetchedFile
from worker.upstream.request_body import encode_body


@pytest.mark.parametrize("size", [0, 1, 5, 786_432, 2_000_001])
@pytest.mark.parametrize("number", [1, 2**70], ids=["orjson", "json"])
def test_the_data_of_files_is_in_its_place(size: int, number: int) -> None:
    contents = [os.urandom(size), b"%PDF-"]
    files: list[Any] = [FetchedFile(None, content, "a/b") for content in contents]  # type: ignore[arg-type]
    body = {"a": [files[0], {"b": files[1], "c": "é"}], "d": files[0], "e": number}
    urls = [f"data:a/b;base64,{base64.b64encode(content).decode()}" for content in contents]
    expected = {"a": [urls[0], {"b": urls[1], "c": "é"}], "d": urls[0], "e": number}
    assert json.loads(encode_body(body)) == expected
    assert [file.data_url() for file in files] == urls
    assert [file.encoded_size for file in files] == [len(url) for url in urls]
