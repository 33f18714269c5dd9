"""A response that waits for an upstream that has failed, and one that has failed with it, as
operators see them: status, filter, counts, cause."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.operator.test_operations import backburner, command_facts
from tests.support.api import Api, until
from tests.support.console import OPERATOR_TOKEN, ConsoleUser, console_user
from tests.support.fake_upstream import FakeUpstream, reply, status
from tests.support.stack import Stack


@dataclass(frozen=True, slots=True)
class Retried:
    """Two background responses whose model answers 429, for which no circuit opens."""

    model: str
    ids: tuple[str, str]

    def shown(self, html: str) -> int:
        """How many of them a page shows."""
        return sum(f'id="open-{each}"' in html for each in self.ids)


@pytest.fixture(scope="module")
async def retried(shared_stack: Stack, fake: FakeUpstream) -> AsyncIterator[Retried]:
    api = shared_stack.api()
    model = fake.script([status(429)])
    made = Retried(model, (await api.create_background(model), await api.create_background(model)))

    async def tried_twice() -> bool:
        tries = [await _tries(api, each) for each in made.ids]
        return min(tries) > 1

    await until(tried_twice)
    yield made
    for each in made.ids:
        await api.cancel(each)


async def _tries(api: Api, response_id: str) -> int:
    wait = ((await api.get(response_id)).get("progress") or {}).get("waits_for") or {}
    tries: int = wait.get("tries") or 0
    return tries


@pytest.fixture
async def user(shared_stack: Stack) -> AsyncIterator[ConsoleUser]:
    async with console_user(shared_stack, OPERATOR_TOKEN) as one:
        yield one


async def test_the_list_and_its_filters_know_the_status(
    shared_stack: Stack, retried: Retried, user: ConsoleUser
) -> None:
    for query, count in (
        ("status=retrying", 2),
        ("status=retrying&upstream=default", 2),
        ("status=retrying&upstream=other", 0),
        ("status=retrying&status=failed&upstream=default", 2),
        (f"upstream=default&model={retried.model}", 2),
        ("status=in_progress", 0),
        ("status=queued", 0),
    ):
        page = await user.get(f"/console/responses?{query}")
        assert (page.status, retried.shown(page.html)) == (200, count), query
    page = await user.get(f"/console/responses?model={retried.model}")
    assert 'badge busy">retrying</span> 2<' in page.html
    assert 'badge busy">in progress</span> 0<' in page.html
    assert "The fake upstream says 429" in page.html
    options = ("--status", "retrying", "--upstream", "default")
    listed = await command_facts(shared_stack, "responses", "list", *options)
    found = [each for each in listed["responses"] if each["id"] in retried.ids]
    assert len(found) == 2
    for each in found:
        assert (each["status"], each["operator_status"]) == ("in_progress", "retrying")
        assert (each["upstream"], each["failed_tries"] > 1) == ("default", True)
        assert each["last_error"].endswith("says 429.")
        assert each["retrying_since"] > each["created_at"]
    text = (await backburner(shared_stack, "responses", "list", *options)).out
    assert "tries, next " in text


async def test_the_overview_has_one_line_for_the_upstream(
    retried: Retried, user: ConsoleUser
) -> None:
    async def line() -> str | None:
        text = (await user.get("/console")).text
        begin = text.find("default fails since ")
        return text[begin : begin + 200] if begin >= 0 else None

    said = await until(line, every=0.5)
    assert said is not None
    assert "The fake upstream says 429). 2 responses of default wait. " in said
    page = await user.get("/console")
    assert page.text.count("default fails since ") == 1
    assert "Nothing is wrong" not in page.text
    assert "Retrying 2 wait for an upstream" in page.text
    assert 'href="/console/responses?status=retrying&amp;upstream=default"' in page.html
    shown = await user.get(f"/console/responses/{retried.ids[0]}")
    assert 'badge busy">retrying</span>' in shown.html
    assert "tries have failed in" in shown.text


async def test_stuck_and_explain_tell_of_tries_in_vain(
    shared_stack: Stack, retried: Retried
) -> None:
    async def stuck(idle: str) -> list[Any]:
        listed = (await command_facts(shared_stack, "stuck", "--idle", idle))["responses"]
        return [each["state"] for each in listed if each["id"] in retried.ids]

    assert await stuck("1") == ["retrying", "retrying"], "a try in vain is no progress"
    assert await stuck("1h") == []
    explained = await command_facts(shared_stack, "explain", retried.ids[0])
    assert "upstream default failed (upstream_429)" in explained["response"]["why"]
    assert explained["attempts"][0]["attempt"] == 1, "the first failure is kept"
    assert explained["attempts"][0]["failures"][0]["reason"] == "upstream_429"


async def test_the_metrics_count_it_for_its_upstream_only(
    shared_stack: Stack, retried: Retried
) -> None:
    async def counted() -> dict[str, float]:
        url = f"http://127.0.0.1:{shared_stack.webs[0].port}/metrics"
        async with shared_stack.session.get(url) as answer:
            samples = [line.rsplit(" ", 1) for line in (await answer.text()).splitlines()]
        return {name: float(value) for name, value in samples if name[0] != "#"}

    async def is_counted_once() -> bool:
        found = await counted()
        others = await shared_stack.value(
            "SELECT count(*) FROM responses WHERE status = 'in_progress'"
            " AND NOT (id = ANY(%s::uuid[]))",
            [each.removeprefix("resp_") for each in retried.ids],
        )
        return (
            found['backburner_responses{status="retrying"}'],
            found['backburner_responses{status="in_progress"}'],
            found['backburner_responses_retrying{upstream="default"}'],
        ) == (2, others, 2)

    await until(is_counted_once, every=0.5)
    assert (await counted())['backburner_retrying_oldest_seconds{upstream="default"}'] > 0


async def test_a_response_that_is_answered_is_not_retrying_any_more(
    shared_stack: Stack, fake: FakeUpstream, user: ConsoleUser
) -> None:
    api = shared_stack.api()
    model = fake.script([status(503)], reply("At last."))
    response_id = await api.create_background(model)
    assert (await api.wait_for_end(response_id))["output_text"] == "At last."
    columns = await shared_stack.value(
        "SELECT ARRAY[failed_upstream, upstream] FROM responses WHERE id = %s",
        response_id.removeprefix("resp_"),
    )
    assert columns == [None, "default"]
    page = await user.get(f"/console/responses?status=completed&upstream=default&model={model}")
    assert f'id="open-{response_id}"' in page.html


async def test_a_failed_response_names_its_upstream(
    shared_stack: Stack, fake: FakeUpstream, user: ConsoleUser
) -> None:
    api = shared_stack.api()
    response_id = await api.create_background(fake.script([status(401)]))
    assert (await api.wait_for_end(response_id))["status"] == "failed"
    for query, is_shown in (
        ("status=failed&upstream=default", True),
        ("upstream=default", True),
        ("status=failed&upstream=other", False),
    ):
        html = (await user.get(f"/console/responses?{query}")).html
        assert (f'id="open-{response_id}"' in html) is is_shown, query
    options = ("--upstream", "default", "--status", "failed")
    listed = await command_facts(shared_stack, "responses", "list", *options)
    assert response_id in [each["id"] for each in listed["responses"]]
    shown = await command_facts(shared_stack, "responses", "show", response_id)
    assert shown["upstream"] == "default"
    lately = (await user.get("/console")).html.split("Failed lately", 1)[1]
    assert '<td class="cut">default</td>' in lately.partition(response_id)[2].partition("</tr>")[0]
