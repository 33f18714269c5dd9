"""`/metrics`: who may ask, what is told, that it moves, and that nothing a client sends makes a label."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from cli.embedded.process import free_port
from models.config.groups import MetricsSettings
from models.db.database import fetch, fetch_on, open_pool
from models.db.queries import operations, statements
from models.metrics import scrape_allowed
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, hang, reply, status, text
from tests.support.stack import SHORT_LEASES, Databases, Service, Stack, SuiteSettings, stack
from tests.support.worker_rows import SeededDatabase, settings_for
from web.routes.metrics import Backlog

TOKEN = "metrics-token-of-the-tests"
LABELS = {
    "status": {"queued", "in_progress", "completed", "incomplete", "failed", "cancelled", *(str(code.value) for code in HTTPStatus)},
    "queue": {"interactive", "background", "quarantine"},
    "result": {"hit", "miss"},
    "mode": {"background", "foreground"},
    "outcome": {"ended", "lost", "died", "handed_over", "requeued", "returned", "put_off", "answered", "failed", "busy"},
    "upstream": {"default"},
    "class": {
        "rate_limited", "credential", "redirect", "request", "server", "reported", "unreachable", "reset", "ended_early", "garbage",
        "model_not_found", "tool_choice_violated", "first_token", "token_gap", "turn_limit", "output_limit", "down", "full", "other",
    },
    "reason": {
        "deadline", "queue_wait", "too_many_deaths", "failed_by_operator", "internal_error", "file_unavailable", "history_deleted",
        "secrets_unreadable", "other",
    },
}  # fmt: skip
"""Every label there is, and every value it may take. A new one is put here on purpose, or is a leak."""
OF_WEB = {
    "backburner_responses", "backburner_queue_depth", "backburner_queue_oldest_seconds", "backburner_database_up", "backburner_readers", "backburner_sockets",
    "backburner_bus_healthy", "backburner_lease_age_seconds", "backburner_http_answers", "backburner_responses_accepted",
    "backburner_responses_ended", "backburner_cancel_seconds", "backburner_cache_lookups",
}  # fmt: skip
OF_WORKERS = {
    "backburner_running", "backburner_slots", "backburner_lease_age_seconds", "backburner_queue_wait_seconds",
    "backburner_first_event_seconds", "backburner_attempts", "backburner_responses_ended", "backburner_upstream_errors", "backburner_failures",
    "backburner_deaths", "backburner_recovery_seconds", "backburner_journal_seconds", "backburner_flush_seconds", "backburner_events",
    "backburner_upstream_running", "backburner_upstream_circuits_open", "backburner_upstream_turns",
}  # fmt: skip


@dataclass(frozen=True)
class Scrape:
    """One answer, taken apart."""

    names: set[str]
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def __call__(self, name: str, **labels: str) -> float:
        """The value of one sample; `class_` for `class`."""
        return self.values[
            name, tuple(sorted((key.rstrip("_"), value) for key, value in labels.items()))
        ]


async def scrape(one: Stack, port: int | None, token: str | None = TOKEN) -> Scrape:
    """Asks as Prometheus does."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with one.session.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(await answer.text()))
    samples = [sample for family in families for sample in family.samples]
    for sample in samples:
        for label, value in sample.labels.items():
            assert label == "le" or value in LABELS[label], sample
    return Scrape(
        {family.name for family in families},
        {(each.name, tuple(sorted(each.labels.items()))): each.value for each in samples},
    )


@pytest.fixture(scope="module")
async def first_port() -> int:
    """Where the workers begin to look for a port."""
    return free_port()


@pytest.fixture(scope="module")
async def one(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    first_port: int,
) -> AsyncIterator[Stack]:
    """A deployment whose figures need a token, with two workers on one host."""
    settings = {
        **SHORT_LEASES,
        "BACKBURNER_METRICS__TOKEN": TOKEN,
        "BACKBURNER_METRICS__PORT": str(first_port),
        "BACKBURNER_WORKER__GRACE": "0.2",
    }
    async with stack(
        tmp_path_factory.mktemp("metrics"),
        database_server,
        suite_settings,
        fake,
        workers=2,
        settings=settings,
    ) as one:
        yield one


async def _ports(one: Stack) -> dict[int, int]:
    """pid -> port of each worker, from their logs."""
    return {worker.pid: await until(partial(_port_of, worker)) for worker in one.workers}


async def _port_of(worker: Service) -> int:
    """0 as long as it has none."""
    found = worker.log.read_text().partition('"port": ')[2]
    return int(found.partition(",")[0]) if found else 0


async def test_on_a_loopback_address_web_shows_its_figures_to_whoever_can_ask(
    shared_stack: Stack,
) -> None:
    seen = await scrape(shared_stack, shared_stack.webs[0].port, token=None)
    assert seen.names >= OF_WEB
    assert seen("backburner_database_up") == 1
    assert seen("process_resident_memory_bytes") > 0


async def test_with_a_token_only_those_who_bring_it_are_answered(one: Stack) -> None:
    for port in (one.webs[0].port, *(await _ports(one)).values()):
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": TOKEN},
            {"authorization": f"Bearer {one.key}"},
        ):
            async with one.session.get(
                f"http://127.0.0.1:{port}/metrics", headers=headers
            ) as answer:
                assert answer.status == 401
                assert TOKEN not in await answer.text()
        assert (await scrape(one, port)).names


def test_elsewhere_and_without_a_token_nobody_is_answered() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "some.host"):
        assert scrape_allowed(MetricsSettings(), host, "Bearer x") is None
        assert scrape_allowed(MetricsSettings(token=SecretStr("x")), host, "Bearer x") is True
        assert scrape_allowed(MetricsSettings(token=SecretStr("x")), host, None) is False
    assert scrape_allowed(MetricsSettings(token=SecretStr("")), "0.0.0.0", "Bearer ") is None


async def test_several_workers_of_one_host_take_one_port_each(one: Stack) -> None:
    ports = await _ports(one)
    assert len(set(ports.values())) == 2
    for port in ports.values():
        seen = await scrape(one, port)
        assert seen.names >= OF_WORKERS
        assert seen("backburner_slots") == -(-200 * 10 // 9)


async def test_what_happens_moves_the_figures_and_makes_no_new_series(
    one: Stack, fake: FakeUpstream
) -> None:
    ports = (one.webs[0].port, *(await _ports(one)).values())
    await one.api().cancel(
        await one.api().create_background(fake.script([text("warm"), hang()]))
    )  # each status is counted from its first answer on
    before = [await scrape(one, port) for port in ports]

    good = [
        await one.api().create_background(
            fake.script(reply(f"{number}")), metadata={"who": str(number)}
        )
        for number in range(12)
    ]
    bad = [
        await one.api().create_background(fake.script([status(code)])) for code in (429, 500, 418)
    ]
    for name in (*good, *bad):
        await one.api().wait_for_end(name)
    await one.api().create(fake.script(reply("foreground")))
    running = fake.script([text("x"), hang()])
    async with one.api().post_stream(running, background=True) as stream:
        await stream.until("response.output_text.delta")
        busy = [await scrape(one, port) for port in ports]
        await one.api().cancel(stream.response_id)
        await stream.to_end()
    after = [await scrape(one, port) for port in ports]

    def moved(name: str, **labels: str) -> float:
        return sum(
            new(name, **labels) - old(name, **labels)
            for new, old in zip(after[1:], before[1:], strict=True)
        )

    assert moved("backburner_responses_ended_total", status="completed") == 13
    assert moved("backburner_responses_ended_total", status="failed") == 3
    assert moved("backburner_responses_ended_total", status="cancelled") == 1
    assert moved("backburner_attempts_total", outcome="ended") == 17
    assert [
        moved("backburner_upstream_errors_total", class_=name)
        for name in ("rate_limited", "server", "request")
    ] == [1, 1, 1]
    assert moved("backburner_queue_wait_seconds_count", queue="background") == 16
    assert moved("backburner_queue_wait_seconds_count", queue="interactive") == 1
    assert moved("backburner_first_event_seconds_count") == 14
    assert moved("backburner_events_total") > 13 * 5
    assert moved("backburner_journal_seconds_count") > 0
    assert sum(each("backburner_running") for each in busy[1:]) == 1
    assert busy[0]("backburner_readers") == 1
    assert (
        after[0]("backburner_responses_accepted_total", mode="background")
        - before[0]("backburner_responses_accepted_total", mode="background")
        == 16
    )
    assert (
        after[0]("backburner_cancel_seconds_count") - before[0]("backburner_cancel_seconds_count")
        == 1
    )
    assert [each.values.keys() for each in after] == [each.values.keys() for each in before]


async def test_a_death_a_recovery_and_a_backlog_are_seen(one: Stack, fake: FakeUpstream) -> None:
    web = one.webs[0].port
    model = fake.script([text("half"), hang()], reply("whole"))
    name = await one.api().create_background(model)
    await until(lambda: fake.requests_for(model))
    owner = await one.value(
        "SELECT w.pid FROM workers w JOIN responses r ON r.worker = w.id WHERE r.id = %s",
        name.removeprefix("resp_"),
    )
    ports = await _ports(one)
    [survivor] = [worker for worker in one.workers if worker.pid != owner]
    one.kill(next(worker for worker in one.workers if worker.pid == owner))
    assert (await one.api().wait_for_end(name))["output_text"] == "whole"
    seen = await scrape(one, ports[survivor.pid])
    assert (seen("backburner_deaths_total"), seen("backburner_attempts_total", outcome="died")) == (
        1,
        1,
    )
    assert seen("backburner_recovery_seconds_count") == 1

    await one.stop(survivor)
    waiting = [await one.api().create_background(fake.script(reply("later"))) for _ in range(3)]

    async def counted() -> Scrape | None:
        seen = await scrape(one, web)
        return seen if seen("backburner_queue_depth", queue="background") == 3 else None

    backlog = await until(counted, 20, every=0.3)
    assert backlog is not None
    assert backlog("backburner_responses", status="queued") == 3
    assert backlog("backburner_queue_oldest_seconds", queue="background") > 0
    assert backlog("backburner_queue_depth", queue="quarantine") == 0
    await one.start_worker()
    await asyncio.gather(*map(one.api().wait_for_end, waiting))


async def test_without_a_database_the_other_figures_are_still_shown(
    database_server: Databases,
) -> None:
    pool = open_pool(settings_for(await database_server.create_copy()), "closed", 1)
    await pool.open(wait=True)
    await pool.close()
    backlog = Backlog()
    await backlog.refresh(pool)
    assert [(family.name, family.samples[0].value) for family in backlog.collect()] == [
        ("backburner_database_up", 0.0)
    ]


async def test_the_backlog_is_counted_by_the_index_of_open_rows(database_server: Databases) -> None:
    dsn = await database_server.create_copy()
    pool = open_pool(settings_for(dsn), "metrics-tests", 2)
    await pool.open(wait=True)
    house = SeededDatabase(pool, dsn)
    await house.create_project()
    names = [await house.create_response() for _ in range(400)]
    for name in names[5:]:
        await fetch(pool, statements.DELETE_UNCLEAR_CREATE, {"id": name, "project": house.project})
    async with pool.connection() as connection:
        await connection.execute("ANALYZE responses")
        plan = await fetch_on(connection, f"EXPLAIN {operations.GAUGES}", {})
        [counted] = await fetch_on(connection, operations.GAUGES, {})
    await pool.close()
    assert any("ix_responses_open" in row["QUERY PLAN"] for row in plan), plan
    assert (counted["queue"], counted["status"], counted["waiting"], counted["responses"]) == (
        "background",
        "queued",
        True,
        5,
    )
