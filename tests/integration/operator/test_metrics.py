"""`/metrics`: who may read it, what it shows, and that no client can create a label value."""

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
from models.db.database import fetch, open_pool
from models.db.queries import create as create_queries
from models.db.queries import operations
from models.metrics import scrape_allowed
from models.ownership.creates import UnclearCreate, void_values
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, hang, reply, status, text
from tests.support.sql import run_sql
from tests.support.stack import SHORT_LEASES, Databases, Service, Stack, SuiteSettings, stack
from tests.support.worker_rows import SeededDatabase, settings_for
from web.gauges import Backlog

TOKEN = "metrics-token-of-the-tests"
LABELS = {
    "status": {
        "queued",
        "in_progress",
        "completed",
        "incomplete",
        "failed",
        "cancelled",
        *(str(code.value) for code in HTTPStatus),
    },
    "queue": {"interactive", "background", "quarantine"},
    "result": {"hit", "miss"},
    "mode": {"background", "foreground"},
    "outcome": {
        "ended",
        "lost",
        "died",
        "handed_over",
        "requeued",
        "returned",
        "put_off",
        "error",
        "answered",
        "failed",
        "busy",
    },
    "upstream": {"default"},
    "class": {
        "rate_limited",
        "credential",
        "redirect",
        "request",
        "server",
        "reported",
        "unreachable",
        "reset",
        "ended_early",
        "garbage",
        "model_not_found",
        "tool_choice_violated",
        "first_token",
        "token_gap",
        "turn_limit",
        "output_limit",
        "down",
        "full",
        "other",
    },
    "reason": {
        "deadline",
        "queue_wait",
        "too_many_deaths",
        "failed_by_operator",
        "internal_error",
        "statement_refused",
        "file_unavailable",
        "history_deleted",
        "secrets_unreadable",
        "other",
    },
}
"""Every label and every value it may have. Add a new one on purpose; any other one is a leak."""
WEB_METRICS = {
    "backburner_responses",
    "backburner_queue_depth",
    "backburner_queue_oldest_seconds",
    "backburner_database_up",
    "backburner_readers",
    "backburner_sockets",
    "backburner_bus_healthy",
    "backburner_lease_age_seconds",
    "backburner_http_answers",
    "backburner_responses_accepted",
    "backburner_responses_ended",
    "backburner_cancel_seconds",
    "backburner_cache_lookups",
    "backburner_enqueues_dropped",
}
WORKER_METRICS = {
    "backburner_running",
    "backburner_slots",
    "backburner_lease_age_seconds",
    "backburner_queue_wait_seconds",
    "backburner_first_event_seconds",
    "backburner_attempts",
    "backburner_responses_ended",
    "backburner_upstream_errors",
    "backburner_failures",
    "backburner_deaths",
    "backburner_recovery_seconds",
    "backburner_journal_seconds",
    "backburner_flush_seconds",
    "backburner_events",
    "backburner_enqueues_dropped",
    "backburner_upstream_running",
    "backburner_upstream_circuits_open",
    "backburner_upstream_turns",
}


@dataclass(frozen=True)
class Scrape:
    """One parsed answer of /metrics."""

    names: set[str]
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def __call__(self, name: str, **labels: str) -> float:
        """The value of one sample; `class_` for `class`."""
        return self.values[
            name, tuple(sorted((key.rstrip("_"), value) for key, value in labels.items()))
        ]


async def scrape(own_stack: Stack, port: int | None, token: str | None = TOKEN) -> Scrape:
    """Scrapes as Prometheus does, and checks every label value."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with own_stack.session.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(await answer.text()))
    samples = [sample for family in families for sample in family.samples]
    for sample in samples:
        for label, value in sample.labels.items():
            assert label == "le" or value in LABELS[label], sample
    return Scrape(
        {family.name for family in families},
        {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples},
    )


@pytest.fixture(scope="module")
async def first_port() -> int:
    """The first port that a worker tries."""
    return free_port()


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    first_port: int,
) -> AsyncIterator[Stack]:
    """A deployment whose metrics need a token, with two workers on one host."""
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
    ) as own_stack:
        yield own_stack


async def _ports(own_stack: Stack) -> dict[int, int]:
    """pid -> port of each worker, from their logs."""
    return {worker.pid: await until(partial(_port_of, worker)) for worker in own_stack.workers}


async def _port_of(worker: Service) -> int:
    """Returns 0 while the log has no port yet."""
    port = worker.log.read_text().partition('"port": ')[2]
    return int(port.partition(",")[0]) if port else 0


async def test_on_a_loopback_address_metrics_need_no_token(
    shared_stack: Stack,
) -> None:
    metrics = await scrape(shared_stack, shared_stack.webs[0].port, token=None)
    assert metrics.names >= WEB_METRICS
    assert metrics("backburner_database_up") == 1
    assert metrics("process_resident_memory_bytes") > 0


async def test_with_a_token_configured_metrics_need_it(own_stack: Stack) -> None:
    for port in (own_stack.webs[0].port, *(await _ports(own_stack)).values()):
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": TOKEN},
            {"authorization": f"Bearer {own_stack.key}"},
        ):
            async with own_stack.session.get(
                f"http://127.0.0.1:{port}/metrics", headers=headers
            ) as answer:
                assert answer.status == 401
                assert TOKEN not in await answer.text()
        assert (await scrape(own_stack, port)).names


def test_on_other_addresses_metrics_are_refused_without_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "some.host"):
        assert scrape_allowed(MetricsSettings(), host, "Bearer x") is None
        assert scrape_allowed(MetricsSettings(token=SecretStr("x")), host, "Bearer x") is True
        assert scrape_allowed(MetricsSettings(token=SecretStr("x")), host, None) is False
    assert scrape_allowed(MetricsSettings(token=SecretStr("")), "0.0.0.0", "Bearer ") is None


async def test_each_worker_on_a_host_listens_on_a_port_of_its_own(own_stack: Stack) -> None:
    ports = await _ports(own_stack)
    assert len(set(ports.values())) == 2
    for port in ports.values():
        metrics = await scrape(own_stack, port)
        assert metrics.names >= WORKER_METRICS
        assert metrics("backburner_slots") == -(-200 * 10 // 9)


async def test_traffic_changes_the_values_and_creates_no_new_series(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    ports = (own_stack.webs[0].port, *(await _ports(own_stack)).values())
    # A cancel first: each status is counted from its first answer on.
    await own_stack.api().cancel(
        await own_stack.api().create_background(fake.script([text("warm"), hang()]))
    )
    before = [await scrape(own_stack, port) for port in ports]

    completed = [
        await own_stack.api().create_background(
            fake.script(reply(f"{number}")), metadata={"who": str(number)}
        )
        for number in range(12)
    ]
    failed = [
        await own_stack.api().create_background(fake.script([status(code)]))
        for code in (429, 500, 418)
    ]
    for response_id in (*completed, *failed):
        await own_stack.api().wait_for_end(response_id)
    await own_stack.api().create(fake.script(reply("foreground")))
    running = fake.script([text("x"), hang()])
    async with own_stack.api().post_stream(running, background=True) as stream:
        await stream.until("response.output_text.delta")
        busy = [await scrape(own_stack, port) for port in ports]
        await own_stack.api().cancel(stream.response_id)
        await stream.to_end()
    after = [await scrape(own_stack, port) for port in ports]

    def increase(name: str, **labels: str) -> float:
        return sum(
            new(name, **labels) - old(name, **labels)
            for new, old in zip(after[1:], before[1:], strict=True)
        )

    assert increase("backburner_responses_ended_total", status="completed") == 13
    assert increase("backburner_responses_ended_total", status="failed") == 3
    assert increase("backburner_responses_ended_total", status="cancelled") == 1
    assert increase("backburner_attempts_total", outcome="ended") == 17
    assert [
        increase("backburner_upstream_errors_total", class_=name)
        for name in ("rate_limited", "server", "request")
    ] == [1, 1, 1]
    assert increase("backburner_queue_wait_seconds_count", queue="background") == 16
    assert increase("backburner_queue_wait_seconds_count", queue="interactive") == 1
    assert increase("backburner_first_event_seconds_count") == 14
    assert increase("backburner_events_total") > 13 * 5
    assert increase("backburner_journal_seconds_count") > 0
    assert sum(metrics("backburner_running") for metrics in busy[1:]) == 1
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
    assert [metrics.values.keys() for metrics in after] == [
        metrics.values.keys() for metrics in before
    ]


async def test_a_death_a_recovery_and_a_backlog_are_counted(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    web = own_stack.webs[0].port
    model = fake.script([text("half"), hang()], reply("whole"))
    response_id = await own_stack.api().create_background(model)
    await until(lambda: fake.requests_for(model))
    owner = await own_stack.value(
        "SELECT w.pid FROM workers w JOIN responses r ON r.worker = w.id WHERE r.id = %s",
        response_id.removeprefix("resp_"),
    )
    ports = await _ports(own_stack)
    [survivor] = [worker for worker in own_stack.workers if worker.pid != owner]
    own_stack.kill(next(worker for worker in own_stack.workers if worker.pid == owner))
    assert (await own_stack.api().wait_for_end(response_id))["output_text"] == "whole"
    metrics = await scrape(own_stack, ports[survivor.pid])
    assert (
        metrics("backburner_deaths_total"),
        metrics("backburner_attempts_total", outcome="died"),
    ) == (
        1,
        1,
    )
    assert metrics("backburner_recovery_seconds_count") == 1

    await own_stack.stop(survivor)
    queued = [
        await own_stack.api().create_background(fake.script(reply("later"))) for _ in range(3)
    ]

    async def three_waiting() -> Scrape | None:
        metrics = await scrape(own_stack, web)
        return metrics if metrics("backburner_queue_depth", queue="background") == 3 else None

    backlog = await until(three_waiting, 20, every=0.3)
    assert backlog is not None
    assert backlog("backburner_responses", status="queued") == 3
    assert backlog("backburner_queue_oldest_seconds", queue="background") > 0
    assert backlog("backburner_queue_depth", queue="quarantine") == 0
    await own_stack.start_worker()
    await asyncio.gather(*map(own_stack.api().wait_for_end, queued))


async def test_without_a_database_the_other_metrics_are_still_shown(
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
    database = SeededDatabase(pool, dsn)
    await database.create_project()
    web = await database.create_worker(kind="web")
    response_ids = [await database.create_response(web=web.id) for _ in range(400)]
    unclear = [UnclearCreate(response_id, database.project, 0) for response_id in response_ids[5:]]
    await fetch(pool, create_queries.VOID_UNCLEAR_CREATES, void_values(unclear, web.id))
    async with pool.connection() as connection:
        await connection.execute("ANALYZE responses")
        plan = await run_sql(connection, f"EXPLAIN {operations.GAUGES.sql}", {})
        [gauge] = await fetch(connection, operations.GAUGES, {})
    await pool.close()
    assert any("ix_responses_open" in row["QUERY PLAN"] for row in plan), plan
    assert (gauge.queue, gauge.status, gauge.waiting, gauge.responses) == (
        "background",
        "queued",
        True,
        5,
    )
