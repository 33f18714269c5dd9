"""The allow-list of code (models/hosts.py), and the addresses of its hosts."""

from typing import Any, cast

import pytest
from aiohttp.abc import ResolveResult

from features.code import egress
from features.code.egress import CodeGuard
from features.code.sandbox.proxy import Refused
from features.code.web import ContainerAccess
from models.config.settings import Settings
from models.errors import InvalidRequest
from models.hosts import allowed_hosts
from worker.outbound.guarded_session import ThreadedResolver


@pytest.mark.parametrize(
    ("host", "port", "is_allowed"),
    [
        ("pypi.org", 443, True),
        ("pypi.org", 80, True),
        ("pypi.org", 8080, False),
        ("xpypi.org", 443, False),
        ("a.pypi.org", 443, False),
        ("a.b.example.org", 443, True),
        ("example.org", 443, False),
        ("notexample.org", 443, False),
        ("models.lan", 8080, True),
        ("models.lan", 443, False),
        ("10.1.2.3", 443, False),
    ],
)
def test_a_list_has_names_and_ports(host: str, port: int, is_allowed: bool) -> None:
    hosts = allowed_hosts(["PyPI.org.", "*.example.org", "models.lan:8080", "10.0.0.0/8"])
    assert hosts.allows(host, port) == is_allowed
    assert hosts.networks == ("10.0.0.0/8",)


@pytest.mark.parametrize(
    "entry",
    ["", "*", "*.", ".a", "a..b", "-a.b", "http://a", "a/b", "u@a", "a b", "1.2.3.4:80", "0x7f"],
)
def test_other_entries_are_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="is no host name"):
        allowed_hosts([entry])


def test_a_client_narrows_the_list() -> None:
    hosts = allowed_hosts(["pypi.org", "*.example.org", "models.lan:8080"])
    narrowed = hosts.narrowed(["a.example.org", "pypi.org:443", "models.lan", "b.c"])
    assert narrowed.names == {
        "a.example.org": {80, 443},
        "pypi.org": {443},
        "models.lan": {8080},
    }
    assert hosts.narrowed(["*.example.org"]).allows("x.example.org", 443)
    assert not hosts.narrowed(["example.org", "*.org", "models.lan:80"])


def test_without_a_list_no_policy_can_be_kept() -> None:
    settings = Settings(database_url="postgresql://unused", redis_url="redis://unused")
    access = ContainerAccess(settings, cast("Any", None), cast("Any", None))
    policy = {"network_policy": {"type": "allowlist", "allowed_domains": ["pypi.org"]}}
    with pytest.raises(InvalidRequest, match="code here has no network") as refused:
        access._require_hosts(policy, "network_policy")
    assert refused.value.param == "network_policy.type"
    access._require_hosts({"network_policy": {"type": "disabled"}}, "network_policy")


class _Resolver(ThreadedResolver):
    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=each, port=port, family=family, proto=0, flags=0)
            for each in self._addresses
        ]


@pytest.mark.parametrize(
    ("addresses", "is_allowed"),
    [
        (["93.184.216.34"], True),
        (["10.1.2.3"], True),
        (["127.0.0.1"], False),
        (["169.254.169.254"], False),
        (["93.184.216.34", "127.0.0.1"], False),
        (["::ffff:127.0.0.1"], False),
    ],
)
async def test_no_name_leads_inside(
    addresses: list[str], is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress, "ThreadedResolver", lambda: _Resolver(*addresses))
    guard = CodeGuard(("10.0.0.0/8",))
    target = guard.check("https://a.example/x")
    if is_allowed:
        assert await guard.addresses(target) == addresses
    else:
        with pytest.raises(Refused, match="could not be reached"):
            await guard.addresses(target)
