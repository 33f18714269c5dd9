"""What responses cost: exact, decided at their end, and the same sum wherever it is shown."""

import csv
import io
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import openai
import pytest

from models.db.database import execute, fetch, open_pool
from models.db.queries.usage import USAGE_SUMS, UsageSum
from models.db.statement import Statement
from models.ids import new_uuid, parse_response_id
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.integration.operator.test_operations import backburner, command_facts
from tests.support import keys
from tests.support.console import OPERATOR_TOKEN, console_user
from tests.support.fake_upstream import FakeUpstream, done, finish, text, usage
from tests.support.stack import Stack
from tests.support.worker_rows import run_purge, settings_for

_FULL = 2_500 * 60 + 250 * 40 + 10_000 * 20
"""Billionths of 100 input tokens, 40 of them cached, and 20 output tokens, by the prices in
tests/conftest.py."""


@dataclass(frozen=True)
class Team:
    """A project with a key, and what its responses cost."""

    id: str
    name: str
    key: str
    prefix: str
    costs: dict[str, int | None]
    """id of a response -> its cost in the database"""


@pytest.fixture(scope="module")
async def team(shared_stack: Stack, fake: FakeUpstream) -> Team:
    client = shared_stack.openai()
    grant = KeyGrant(frozenset((Scope.ADMIN,)), "operations")
    client.admin_api_key = keys.create(shared_stack.dsn, "default", grant=grant)
    projects = client.admin.organization.projects
    # a spreadsheet would run it
    project = await projects.create(name=f"=costs {new_uuid()}")
    account = await projects.service_accounts.create(project.id, name="ci")
    assert account.api_key is not None
    api = shared_stack.api(key=account.api_key.value)
    counts = usage(prompt=100, completion=20, cached=40)
    priced = fake.script([text("x"), finish(), counts, done()], name="priced-model")
    uncounted = fake.script([text("x"), finish(), done()], name="priced-uncounted")
    unpriced = fake.script([text("x"), finish(), counts, done()])
    window: dict[str, Any] = {"background_options": {"completion_window": "2h"}}
    costs: dict[str, int | None] = {}
    for model, options in (
        (priced, {}),
        (priced, {"service_tier": "flex"}),
        (priced, window),
        (uncounted, {}),
        (unpriced, {}),
    ):
        created = await api.create_background(model, **options)
        await api.wait_for_end(created)
        costs[created] = await shared_stack.value(
            "SELECT cost FROM responses WHERE id = %s", parse_response_id(created)
        )
    prefix = account.api_key.value[:8]
    assert project.name is not None
    return Team(project.id, project.name, account.api_key.value, prefix, costs)


def _admin(stack: Stack) -> openai.AsyncOpenAI:
    grant = KeyGrant(frozenset((Scope.ADMIN,)), "costs")
    client = stack.openai()
    client.admin_api_key = keys.create(stack.dsn, "default", grant=grant)
    return client


async def test_cached_tokens_tiers_and_windows_have_their_prices(team: Team) -> None:
    assert _FULL == 360_000
    assert list(team.costs.values()) == [_FULL, _FULL // 2, _FULL * 3 // 4, None, None]


async def test_the_command_sums_up_costs_by_key_and_day(shared_stack: Stack, team: Team) -> None:
    rows = await command_facts(
        shared_stack, "usage", "--project", team.name, "--by", "key", "--by", "day"
    )
    [row] = rows
    assert (row["key"], row["name"], row["project"]) == (team.prefix, "ci", team.name)
    assert (row["cost"], row["currency"]) == ("0.00081", "EUR")
    assert (row["requests"], row["requests_without_cost"]) == (5, 2)
    shown = await backburner(shared_stack, "usage", "--project", team.name, "--by", "model")
    assert "0.00081 EUR" in shown.out
    by_project = await backburner(
        shared_stack, "usage", "--project", team.name, "--by", "project", "--csv"
    )
    [line] = csv.DictReader(io.StringIO(by_project.out))
    assert (line["project"], line["cost"]) == (f"'{team.name}", "0.00081")


async def test_new_prices_change_no_earlier_cost(shared_stack: Stack, team: Team) -> None:
    dearer = {"BACKBURNER_PRICES__MODELS": '{"*": {"input": 1000, "output": 1000}}'}
    arguments = ("usage", "--project", team.name, "--by", "project", "--json")
    result = await backburner(shared_stack, *arguments, environment=dearer)
    [row] = result.facts
    assert (row["cost"], row["requests_without_cost"]) == ("0.00081", 2)


async def test_the_api_has_costs_in_the_official_shape(shared_stack: Stack, team: Team) -> None:
    usages = _admin(shared_stack).admin.organization.usage
    page = await usages.costs(
        start_time=int(datetime.now(UTC).timestamp()) - 60,
        group_by=["project_id", "line_item"],
        project_ids=[team.id],
    )
    results: list[Any] = [result for bucket in page.data for result in bucket.results]
    amounts = {
        result.line_item: result.amount and (result.amount.value, result.amount.currency)
        for result in results
    }
    assert amounts.pop("priced-model") == (0.00081, "eur")
    assert list(amounts.values()) == [None, None]
    assert {result.project_id for result in results} == {team.id}
    assert {result.num_requests_without_cost for result in results} == {0, 1}
    with pytest.raises(openai.BadRequestError, match="Supported values"):
        await usages.costs(start_time=0, group_by=["model"])  # type: ignore[list-item]


async def test_the_console_shows_costs_and_downloads_them(shared_stack: Stack, team: Team) -> None:
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        about = f"project={team.name}&days=1".replace("=costs ", "%3Dcosts+")
        page = await user.get(f"/console/usage?{about}&by=model")
        assert "0.00081 EUR" in page.text
        assert "without 2 requests whose cost is not known" in page.text
        by_key = await user.get(f"/console/usage?{about}&by=key")
        assert f"{team.prefix}… ci {team.name} 0.00081 2 5" in by_key.text
        of_key = await user.get(f"/console/usage?key={team.prefix}&by=upstream&days=1")
        assert "0.00081 EUR" in of_key.text
        for response in team.costs:
            shown = await user.get(f"/console/responses/{response}")
            assert ("0.00036 EUR" in shown.text) is (team.costs[response] == _FULL)
        download = await user.get(f"/console/usage/csv?{about}&by=both")
        assert download.headers["content-type"].startswith("text/csv")
        assert "attachment" in download.headers["content-disposition"]
        rows = list(csv.DictReader(io.StringIO(download.html)))
        assert {row["project"] for row in rows} == {f"'{team.name}"}
        assert rows[0]["model"] == "priced-model"
        assert (rows[0]["cost"], rows[0]["currency"]) == ("0.00081", "EUR")
        assert [row["cost"] for row in rows[1:]] == ["", ""]
        assert (await user.get("/console/usage/csv?project=nobodys")).status == 404


_ENTRIES = Statement("""
    INSERT INTO usage_entries (project_id, ended_at, model, requests, input_tokens, cached_tokens,
                               output_tokens, reasoning_tokens, cost)
    SELECT :project, now() - n * interval '1 hour', 'm', 1, 10, 0, 1, 0,
           CASE WHEN n % 2 = 0 THEN n END
    FROM generate_series(0, 71) n
""")


async def test_sums_stay_the_same_when_hours_and_days_are_summed_up(shared_stack: Stack) -> None:
    settings, project = settings_for(shared_stack.dsn), new_uuid()
    today = datetime.now(UTC).date()
    values = {
        "first": today - timedelta(days=4),
        "last": today,
        **dict.fromkeys(("key", "model", "upstream")),
        "project": project,
        "group_by": ["day"],
        **dict.fromkeys(("max_summed", "max_entries", "max_rows"), 1000),
    }
    async with open_pool(settings, "test", 2) as pool:
        await shared_stack.value(
            "UPDATE usage_rollup SET hours_until = NULL,"
            " rolled_until = (now() AT TIME ZONE 'UTC')::date - 5 RETURNING 1"
        )
        await execute(pool, _ENTRIES, {"project": project})

        async def read() -> list[UsageSum]:
            return await fetch(pool, USAGE_SUMS, values)

        before = await read()
        total = before[0]
        assert total.is_total
        assert (total.requests, total.cost, total.unpriced) == (72, sum(range(0, 72, 2)), 36)
        assert total.entries == 72
        for _ in range(200):
            await run_purge(settings)
            after = await read()
            if after[0].entries <= 3:
                break
        assert after[0].entries <= 3
        assert [_facts(row) for row in after] == [_facts(row) for row in before]


def _facts(row: UsageSum) -> tuple[object, ...]:
    return row.day, row.requests, row.input_tokens, row.cost, row.unpriced
