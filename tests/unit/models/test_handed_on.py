"""Addresses that only an upstream fetches, and the rules of single projects."""

from typing import Any

import pytest
from pydantic import ValidationError

from models.config.groups import EgressSettings
from models.egress import EgressPolicy, EgressRefused
from models.projects.policy import ProjectEgress
from models.wire.urls import item_urls, nested_urls

OPEN = EgressPolicy(EgressSettings())
CLOSED = EgressPolicy(EgressSettings(public=False, allow=("files.example", "*.example.com")))


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://2852039166/",
        "http://0xa9fea9fe/",
        "http://0251.0376.0251.0376/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[fd00:ec2::254]/",
        "http://１６９.254.169.254/",
        "http://127.1/",
        "http://localhost./x.png",
        "http://a.localhost/",
        "http://metadata.google.internal/computeMetadata/v1/",
        "http://METADATA.GOOGLE.INTERNAL./",
        "http://metadata/",
        "http://printer.local/",
        "http://redis:6379/",
        "http://db.default.svc/",
        "http://user:pass@example.com/",
        "file:///etc/passwd",
        "ftp://example.com/a.png",
        "gopher://127.0.0.1:6379/_INFO",
    ],
)
def test_an_upstream_gets_no_address_of_a_private_place(url: str) -> None:
    with pytest.raises(EgressRefused):
        OPEN.check_handed_on(url)


@pytest.mark.parametrize("url", ["https://example.com/cat.png", "http://192.0.78.9:8080/a?b=c"])
def test_an_upstream_gets_public_addresses(url: str) -> None:
    assert OPEN.check_handed_on(url).url == url


def test_a_name_is_judged_by_what_it_means_here() -> None:
    target = OPEN.check_handed_on("https://localtest.example/")
    OPEN.check_handed_on_addresses(target, [])
    OPEN.check_handed_on_addresses(target, ["93.184.215.14"])
    for address in ("127.0.0.1", "10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1"):
        with pytest.raises(EgressRefused):
            OPEN.check_handed_on_addresses(target, ["93.184.215.14", address])


def test_a_private_name_may_mean_an_allowed_network() -> None:
    policy = EgressPolicy(EgressSettings(allow=("10.0.0.0/8",)))
    target = policy.check_handed_on("http://files.internal/a.png")
    policy.check_handed_on_addresses(target, ["10.1.2.3"])
    for addresses in ([], ["10.1.2.3", "192.168.0.1"]):
        with pytest.raises(EgressRefused):
            policy.check_handed_on_addresses(target, addresses)


def test_without_the_public_internet_only_what_is_listed_is_reached() -> None:
    for url in ("https://files.example/a", "https://a.b.example.com/"):
        CLOSED.check_handed_on_addresses(CLOSED.check_handed_on(url), [])
    for url in ("https://example.com/", "https://notexample.com/", "http://93.184.215.14/"):
        with pytest.raises(EgressRefused, match="not among those"):
            CLOSED.check_url(url)
    with pytest.raises(EgressRefused, match="not among those"):
        CLOSED.check_address("93.184.215.14", 443)


def test_a_projects_rules_are_in_place_of_the_servers() -> None:
    assert OPEN.of_project(ProjectEgress()) is OPEN
    closed = OPEN.of_project(ProjectEgress(public=False))
    assert OPEN.of_project(ProjectEgress(public=False)) is closed
    with pytest.raises(EgressRefused):
        closed.check_url("https://example.com/")
    own = CLOSED.of_project(ProjectEgress(allow=("10.0.0.0/8",)))
    own.check_url("http://10.0.0.1/")
    with pytest.raises(EgressRefused):
        own.check_address("93.184.215.14", 443)
    CLOSED.of_project(ProjectEgress(public=True)).check_url("https://example.com/")
    with pytest.raises(ValidationError, match="neither a network"):
        ProjectEgress(allow=("http://x",))


def test_every_url_of_an_item_is_found_and_nothing_else() -> None:
    url = "https://example.com/a"
    image = {"type": "input_image", "image_url": url}
    items: list[dict[str, Any]] = [
        {"type": "message", "content": [{"type": "input_text", "text": url}, image]},
        {"type": "message", "content": [{"type": "input_file", "file_url": url}]},
        {"type": "message", "content": [{"type": "input_file", "file_data": url}]},
        {"type": "message", "content": [{"type": "input_file", "file_data": "aGVsbG8="}]},
        {"type": "message", "content": [{"type": "input_image", "image_url": "DATA:image/png,x"}]},
        {"type": "message", "content": [{"type": "input_audio", "input_audio": {"data": url}}]},
        {"type": "function_call_output", "output": [image]},
        {"type": "function_call_output", "output": url},
        {"type": "computer_call_output", "output": {"type": "s", "image_url": url}},
    ]
    assert [(place.param(place.item), place.is_fetched_here) for place in item_urls(items)] == [
        ("input[0].content[1].image_url", False),
        ("input[1].content[0].file_url", True),
        ("input[2].content[0].file_data", False),
        ("input[5].content[0].input_audio.data", False),
        ("input[6].output[0].image_url", False),
        ("input[8].output.image_url", False),
    ]


def test_every_url_of_a_chat_completion_is_found_and_no_content() -> None:
    url = "http://127.0.0.1/"
    body = {
        "model": url,
        "messages": [
            {"role": "user", "content": url, "annotations": [{"url_citation": {"url": url}}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": url},
                    {"type": "image_url", "image_url": {"url": url}},
                    {"type": "image_url", "image_url": url},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aa"}},
                    {"type": "video_url", "video_url": {"url": url}},
                    {"type": "file", "file": {"file_data": url, "filename": "a:b"}},
                    {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
                    {"type": "image", "source": {"type": "url", "Url": url}},
                ],
            },
        ],
        "tools": [{"function": {"parameters": {"properties": {"url": {"example_url": url}}}}}],
        "metadata": {"callback_url": url},
    }
    part = "messages[1].content"
    assert [place for place, _ in nested_urls(body, "")] == [
        f"{part}[1].image_url.url",
        f"{part}[2].image_url",
        f"{part}[4].video_url.url",
        f"{part}[5].file.file_data",
        f"{part}[6].input_audio.data",
        f"{part}[7].source.Url",
    ]


@pytest.mark.parametrize(
    "value",
    [
        "//metadata.google.internal/x",
        "//169.254.169.254/x",
        "//[::1]/",
        "//host:8080/x",
        "//user@intranet/",
        "/\\intranet/x",
        "\\\\intranet\\share",
        " //x.y/",
        "\x01http://x/",
        "ht\ttp://x/",
        "/\n/x.y/",
        "gopher:x",
    ],
)
def test_what_a_reader_may_take_for_a_url_is_judged_in_each_field_for_data(value: str) -> None:
    content = [
        {"type": "input_file", "file_data": value},
        {"type": "input_audio", "input_audio": {"data": value}},
        {"type": "input_image", "image_url": value},
    ]
    places = list(item_urls([{"type": "message", "content": content}]))
    body = {"image": value, "images": [value], "file": {"file_data": value}, "image_url": value}
    assert len(places) == len(content)
    assert len(list(nested_urls(body, ""))) == len(body)
    for place in places:
        with pytest.raises(EgressRefused):
            OPEN.check_handed_on(place.url)


@pytest.mark.parametrize(
    "value", ["//uQxAAAWnQ+/8A=", "//uQ\nxAAA", "/9j/4AAQSkZJRg==", "file-1_a"]
)
def test_base64_is_no_url_whatever_it_begins_with(value: str) -> None:
    """The data of an MP3 begins with `//`."""
    part = {"type": "input_audio", "input_audio": {"data": value}}
    assert not list(item_urls([{"type": "message", "content": [part]}]))
    assert not list(nested_urls({"data": value, "file_id": value}, ""))
