"""Pages that need no key, when a request names another host than this server."""

import pytest
from yarl import URL

from tests.support.api import Api


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/metrics"])
async def test_a_page_without_a_key_is_not_served_to_a_rebound_name(api: Api, path: str) -> None:
    url = URL(api.base_url).with_path(path)
    statuses = {}
    for host in ("evil.example", f"localhost:{url.port}", f"127.0.0.1:{url.port}"):
        async with api.session.get(url, headers={"host": host}) as answer:
            statuses[host] = answer.status
            if answer.status != 200:
                error = (await answer.json())["error"]
                assert (answer.status, error["code"]) == (403, "host_not_allowed")
                assert "BACKBURNER_ALLOWED_HOSTS" in error["message"]
    assert list(statuses.values()) == [403, 200, 200]


async def test_the_api_itself_works_under_every_name(api: Api) -> None:
    answer = await api.call("GET", "/models", headers={"host": "proxied.example"})
    assert answer.status == 200


async def test_the_page_of_the_api_loads_nothing_from_elsewhere(api: Api) -> None:
    async with api.session.get(URL(api.base_url).with_path("/docs")) as answer:
        html = await answer.text()
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert "/v1/responses/{response_id}" in html
    assert 'id="schema-Response"' in html
    assert "<script>" not in html
    addresses = [
        each.split('"')[0] for mark in ('src="', 'href="') for each in html.split(mark)[1:]
    ]
    assert all(each.startswith(("/", "#")) for each in addresses)
