"""Addresses to which the server must not connect for a client, in all their spellings."""

import pytest
from pydantic import ValidationError

from models.config.groups import EgressSettings
from models.egress import EgressPolicy, EgressRefused

CLOSED = EgressPolicy(EgressSettings())
LOCAL = EgressPolicy(EgressSettings(allow=("127.0.0.0/8", "fd00:1::/32", "intern.example")))

PRIVATE = "its address is not on the public internet"
IPV4 = "an IPv4 address must be written as four decimal numbers"
HOST = "its host name is not valid"
SCHEME = "its address must begin with http:// or https://"
USER = "its address must not hold a user name or password"
CHARACTER = "its address contains a character that is not allowed in a URL"
BROKEN = "its address is not a valid URL"

HOSTILE_URLS = [
    # not a web address
    ("", SCHEME),
    ("file:///etc/passwd", SCHEME),
    ("ftp://example.com/a", SCHEME),
    ("gopher://example.com:70/_x", SCHEME),
    ("dict://example.com/d:x", SCHEME),
    ("data:text/plain,x", SCHEME),
    ("javascript:alert(1)", SCHEME),
    ("ws://example.com/", SCHEME),
    ("unix:///run/postgres.sock", SCHEME),
    ("//example.com/a", SCHEME),
    ("example.com/a", SCHEME),
    ("http:example.com", HOST),
    ("http://", HOST),
    ("http:///etc/passwd", HOST),
    ("http://?x", HOST),
    ("http://:80/", HOST),
    ("https://example.com:99999/", BROKEN),
    ("https://example.com:-1/", BROKEN),
    ("https://example.com:0/", "port 0 is not allowed"),
    ("https://example.com:http/", BROKEN),
    ("https://[::1/", BROKEN),
    (f"https://example.com/{'a' * 8192}", "its address is longer than 8192 characters"),
    # what parsers read differently
    ("http://example.com\\@127.0.0.1/", CHARACTER),
    ("http:\\\\127.0.0.1/", CHARACTER),
    ("http://127.0.0.1\t/", CHARACTER),
    ("http://exam\nple.com/", CHARACTER),
    ("http://example.com/\r\nhost: internal", CHARACTER),
    (" http://example.com/", CHARACTER),
    ("http://example.com /", CHARACTER),
    ("http://example.com\x00.internal/", CHARACTER),
    ("http://user@example.com/", USER),
    ("http://user:secret@example.com/", USER),
    ("http://example.com@127.0.0.1/", USER),
    ("http://127.0.0.1:80@example.com/", USER),
    ("http://@127.0.0.1/", USER),
    ("http://%31%32%37.0.0.1/", HOST),
    ("http://127.0.0.1%2f@example.com/", USER),
    ("http://127.0.0.1%00.example.com/", HOST),
    ("http://-a.example.com/", HOST),
    ("http://a..example.com/", HOST),
    ("http://.example.com/", HOST),
    (f"http://{'a' * 64}.example.com/", HOST),
    ("http://exa*mple.com/", HOST),
    # this machine
    ("http://127.0.0.1/", PRIVATE),
    ("http://127.0.0.1./", PRIVATE),
    ("http://127.1.2.3:8000/", PRIVATE),
    ("http://[::1]/", PRIVATE),
    ("http://[0:0:0:0:0:0:0:1]:5432/", PRIVATE),
    ("http://[::]/", PRIVATE),
    ("http://0.0.0.0/", PRIVATE),
    ("http://0.1.2.3/", PRIVATE),
    # IPv4 by other spellings
    ("http://2130706433/", IPV4),
    ("http://0x7f000001/", IPV4),
    ("http://0x7f.0.0.1/", IPV4),
    ("http://0177.0.0.1/", IPV4),
    ("http://017700000001/", IPV4),
    ("http://127.1/", IPV4),
    ("http://127.0.1/", IPV4),
    ("http://127.0.0.01/", IPV4),
    ("http://127.0.0.256/", IPV4),
    ("http://0/", IPV4),
    ("http://0x/", IPV4),
    ("http://1.2.3.4.5/", IPV4),
    ("http://example.1/", IPV4),
    ("http://１２７.０.０.１/", PRIVATE),
    ("http://127。0。0。1/", PRIVATE),
    ("http://①②⑦.0.0.1/", PRIVATE),
    ("http://0Ⅹ7f.1/", IPV4),
    # networks that are not the internet
    ("http://10.0.0.1/", PRIVATE),
    ("http://172.16.0.1/", PRIVATE),
    ("http://172.31.255.255/", PRIVATE),
    ("http://192.168.1.1/", PRIVATE),
    ("http://100.64.0.1/", PRIVATE),
    ("http://169.254.1.1/", PRIVATE),
    ("http://224.0.0.1/", PRIVATE),
    ("http://239.255.255.250:1900/", PRIVATE),
    ("http://240.0.0.1/", PRIVATE),
    ("http://255.255.255.255/", PRIVATE),
    ("http://198.18.0.1/", PRIVATE),
    ("http://192.0.2.1/", PRIVATE),
    ("http://192.88.99.1/", PRIVATE),
    ("http://[fe80::1]/", PRIVATE),
    ("http://[fe80::1%25eth0]/", HOST),
    ("http://[fec0::1]/", PRIVATE),
    ("http://[fc00::1]/", PRIVATE),
    ("http://[fd12:3456::1]/", PRIVATE),
    ("http://[ff02::1]/", PRIVATE),
    ("http://[2001:db8::1]/", PRIVATE),
    ("http://[v1.x]/", HOST),
    # clouds' metadata
    ("http://169.254.169.254/latest/meta-data/", PRIVATE),
    ("http://169.254.170.2/v2/credentials", PRIVATE),
    ("http://[fd00:ec2::254]/latest/", PRIVATE),
    ("http://100.100.100.200/latest/", PRIVATE),
    ("http://192.0.0.192/opc/", PRIVATE),
    ("http://168.63.129.16/machine", PRIVATE),
    # IPv4 inside IPv6
    ("http://[::ffff:127.0.0.1]/", PRIVATE),
    ("http://[::ffff:7f00:1]/", PRIVATE),
    ("http://[::ffff:169.254.169.254]/", PRIVATE),
    ("http://[::127.0.0.1]/", PRIVATE),
    ("http://[::ffff:0:127.0.0.1]/", PRIVATE),
    ("http://[2002:7f00:1::]/", PRIVATE),
    ("http://[2002:a9fe:a9fe::1]/", PRIVATE),
    ("http://[64:ff9b::127.0.0.1]/", PRIVATE),
    ("http://[64:ff9b::a9fe:a9fe]/", PRIVATE),
    ("http://[64:ff9b:1::1]/", PRIVATE),
    ("http://[2001:0:1:2:3:4:80ff:fffe]/", PRIVATE),
    ("http://[2a00:1450::5efe:7f00:1]/", PRIVATE),
    ("http://[2a00:1450::200:5efe:10.0.0.1]/", PRIVATE),
    # ports of other services
    ("http://8.8.8.8:22/", "port 22 is not allowed"),
    ("http://8.8.8.8:25/", "port 25 is not allowed"),
    ("https://[2a00:1450:4001::1]:110/", "port 110 is not allowed"),
]


@pytest.mark.parametrize(
    ("url", "why"), HOSTILE_URLS, ids=[repr(url[:60]) for url, _ in HOSTILE_URLS]
)
def test_a_hostile_address_is_refused(url: str, why: str) -> None:
    with pytest.raises(EgressRefused) as refusal:
        CLOSED.check_url(url)
    assert str(refusal.value) == why


PLAIN_URLS = [
    ("https://example.com", "https://example.com/"),
    ("HTTPS://Example.COM:443/A?b=c#d", "https://example.com/A?b=c"),
    ("http://example.com:8080/a%20b", "http://example.com:8080/a%20b"),
    ("https://example.com./", "https://example.com/"),
    ("https://münchen.example/straße?q=ü", "https://xn--mnchen-3ya.example/stra%C3%9Fe?q=%C3%BC"),
    ("https://a_b.example.com/x;y=1/@z?a=b@c", "https://a_b.example.com/x;y=1/@z?a=b@c"),
    ("http://8.8.8.8/", "http://8.8.8.8/"),
    ("http://[2A00:1450:4001:0:0:0:0:1]/", "http://[2a00:1450:4001::1]/"),
    ("http://[::ffff:8.8.8.8]:81818/".replace("81818", "8181"), "http://[::ffff:808:808]:8181/"),
    ("http://[64:ff9b::808:808]/", "http://[64:ff9b::808:808]/"),
    # checked at the connection, not by the name
    ("http://localhost/", "http://localhost/"),
    ("http://metadata.google.internal/", "http://metadata.google.internal/"),
    ("http://127.0.0.1.nip.example/", "http://127.0.0.1.nip.example/"),
]


@pytest.mark.parametrize(("url", "plain"), PLAIN_URLS, ids=[url for url, _ in PLAIN_URLS])
def test_a_public_address_gets_one_plain_spelling(url: str, plain: str) -> None:
    target = CLOSED.check_url(url)
    assert target.url == plain
    assert CLOSED.check_url(plain) == target


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("127.0.0.1", 80), ("10.1.2.3", 443), ("::1", 80), ("::ffff:10.0.0.1", 80),
        ("fe80::1%eth0", 80), ("fe80::1%2", 443), ("169.254.169.254", 80), ("0.0.0.0", 8000),
        ("8.8.8.8", 23), ("nonsense", 80), ("", 80), ("2130706433", 80),
    ],
)  # fmt: skip
def test_a_connection_to_a_private_address_is_refused(address: str, port: int) -> None:
    with pytest.raises(EgressRefused):
        CLOSED.check_address(address, port)


@pytest.mark.parametrize(
    ("address", "port"),
    [("8.8.8.8", 80), ("1.1.1.1", 443), ("2a00:1450:4001::1", 8443), ("::ffff:8.8.8.8", 443)],
)
def test_a_connection_to_the_public_internet_is_allowed(address: str, port: int) -> None:
    CLOSED.check_address(address, port)


def test_a_deployment_can_allow_private_addresses_without_opening_others() -> None:
    for url in (
        "http://127.0.0.1:22/",
        "http://[::ffff:127.0.0.1]/",
        "http://[fd00:1::5]:5432/",
        "http://intern.example:9/",
    ):
        LOCAL.check_url(url)
    LOCAL.check_address("127.8.8.8", 1)
    assert LOCAL.allows_host("intern.example")
    assert not LOCAL.allows_host("other.intern.example")
    for url in (
        "http://10.0.0.1/",
        "http://[::1]/",
        "http://2130706433/",
        "http://user@127.0.0.1/",
    ):
        with pytest.raises(EgressRefused):
            LOCAL.check_url(url)


def test_allowed_networks_and_names_can_be_separated_by_commas() -> None:
    allow = EgressSettings.model_validate({"allow": "127.0.0.0/8, intern.example,10.0.0.7"}).allow
    assert allow == ("127.0.0.0/8", "intern.example", "10.0.0.7")
    assert EgressSettings.model_validate({"allow": ""}).allow == ()


@pytest.mark.parametrize("entry", ["10.0.0.0/99", "http://x", "a b", "10.0.0", "*", "1.2.3.4.5"])
def test_an_allowance_that_is_neither_network_nor_name_is_refused(entry: str) -> None:
    with pytest.raises(ValidationError):
        EgressSettings(allow=(entry,))
