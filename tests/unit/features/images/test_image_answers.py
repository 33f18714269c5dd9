"""Where upstreams have the image in an answer of `/v1/images/*`."""

from typing import Any

import pytest

from features.images.upstream import NoImage, decoded, image_of
from tests.support.images import b64, png

ADDRESS = "https://images.example/a.png?x=1"
DATA_URL = f"data:image/png;base64,{b64(png())}"


@pytest.mark.parametrize(
    "answer",
    [
        {"data": [{"b64_json": b64(png())}]},
        {"data": [{"b64_json": DATA_URL}]},
        {"data": [{"b64_json": None, "url": DATA_URL}]},
        {"data": [{"url": b64(png())}]},
        {"data": [{"b64_json": b64(png()), "url": ADDRESS}]},
        {"data": None, "images": [{"b64_json": b64(png())}]},
        {"images": [b64(png())], "parameters": {}},
        {"type": "image_generation.completed", "b64_json": b64(png())},
    ],
)
def test_an_image_is_found_wherever_it_is(answer: Any) -> None:
    found = image_of(answer)
    assert (decoded(found.data, 1_000_000), found.url) == (png(), "")


@pytest.mark.parametrize(
    "answer",
    [
        {"data": [{"url": ADDRESS}]},
        {"data": [{"b64_json": ADDRESS}]},
        {"data": [{"b64_json": "", "url": ADDRESS}]},
        {"images": [{"url": ADDRESS}], "timings": {"inference": 1.2}, "seed": 7},
        {"images": [ADDRESS]},
        {"created": 1, "data": [], "images": [{"url": ADDRESS}]},
        {"url": ADDRESS},
    ],
)
def test_so_is_its_address(answer: Any) -> None:
    found = image_of(answer)
    assert (found.data, found.url) == ("", ADDRESS)


@pytest.mark.parametrize(
    "answer",
    [
        *({"created": 1, "data": []}, {"data": [{}]}, {"data": [None]}, {"images": []}, {}),
        *([], None, "text", {"data": "text"}, {"data": [[ADDRESS]]}, {"data": [{"url": 7}]}),
    ],
)
def test_no_image_is_an_error_and_nothing_worse(answer: Any) -> None:
    with pytest.raises(NoImage, match="no image"):
        image_of(answer)
