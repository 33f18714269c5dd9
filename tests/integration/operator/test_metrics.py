"""`/metrics`: who may read it, what it shows, and that no client can create a label value. Boards
and alerts that read it. Traces, which the same deployment sends to a collector."""

import asyncio
import contextlib
import json
import platform
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from cli.embedded.process import free_port
from features.backlog.web import Backlog
from features.console.app import PAGES
from features.console.site import CONSOLE
from features.files.objects import FilePurpose
from models.config.groups import MetricsSettings
from models.db.database import fetch, open_pool
from models.db.queries import create as create_queries
from models.db.queries import operations
from models.lifecycle import Lane
from models.metrics import scrape_allowed
from models.ownership.creates import UnclearCreate, void_values
from models.projects.quotas import Quota
from models.version import VERSION
from models.windows import CompletionWindow
from tests.support.api import until
from tests.support.batches import line, start, until_status
from tests.support.deployment_files import ROOT
from tests.support.fake_upstream import FakeUpstream, hang, reply, status, text
from tests.support.mcp_servers import McpServers
from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.support.promql import (
    ALERTS,
    BOARDS,
    alert_expressions,
    alert_rules,
    board_expressions,
)
from tests.support.sql import run_sql
from tests.support.stack import SHORT_LEASES, Databases, Service, Stack, SuiteSettings, stack
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, tool_turn
from tests.support.worker_rows import SeededDatabase, settings_for
from web.app import api_routes

TOKEN = "metrics-token-of-the-tests"
LABELS = {
    "status": {
        "queued",
        "in_progress",
        "retrying",
        "completed",
        "incomplete",
        "failed",
        "cancelled",
        *("created", "skipped"),  # runs of schedules
        *(str(code.value) for code in HTTPStatus),
        *(
            "0",
            "499",
        ),  # the client disconnected: before an error could be sent, or could not read it
    },
    "protection": {"landlock", "seccomp"},
    "demand": {"tool_choice_unmet", "text_format_unmet"},
    "queue": {"interactive", "background", "quarantine"},
    "result": {"hit", "miss"},
    "lane": {lane.name.lower() for lane in Lane},
    "window": {window.value for window in CompletionWindow},
    "quota": {quota.name for quota in Quota},
    "mode": {"background", "foreground"},
    "outcome": {
        "ended",
        "lost",
        "died",
        "handed_over",
        "requeued",
        "returned",
        "deferred",
        "repeated",
        "error",
        "answered",
        "delivered",
        "failed",
        "busy",
    },
    "upstream": {"default", "none"},
    "model": {"routed", "other"},
    "kind": {"input", "cached_input", "output", "reasoning", "web", "worker", "quarantine"},
    "tool": {
        *("mcp_call", "mcp_list_tools", "web_search_call", "file_search_call", "other"),
        *("code_interpreter_call", "image_generation_call", "shell_call_output"),
        "tool_search_call",
    },
    "state": {"idle", "used", "enabled", "failing", "disabled"},
    "purpose": {purpose.value for purpose in FilePurpose},
    "version": {VERSION},
    "python": {platform.python_version()},
    "method": {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "other"},
    "route": {
        "other",
        *(route.path for route in api_routes() if isinstance(route, APIRoute)),
        *(f"{CONSOLE}{page.path}" for page in PAGES),
    },
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
        "empty",
        "finish_reason",
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
        "memory_limit",
        "internal_error",
        "statement_refused",
        "file_unavailable",
        "storage_unavailable",
        "history_deleted",
        "secrets_unreadable",
        "other",
    },
}
"""Every label and every value it may have. Add a new one on purpose; any other one is a leak.
Besides these, a `model` may be one of MODELS names that the upstream has answered."""
MODELS = 2
UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PROCESS_METRICS = {
    "backburner_build_info",
    "backburner_pool_connections",
    "backburner_pool_max_connections",
    "backburner_pool_waiting",
    "backburner_pool_wait_seconds",
    "backburner_lease_age_seconds",
}
WEB_METRICS = PROCESS_METRICS | {
    "backburner_live_processes",
    "backburner_database_bytes",
    "backburner_files",
    "backburner_file_bytes",
    "backburner_responses_retrying",
    "backburner_retrying_oldest_seconds",
    "backburner_http_request_seconds",
    "backburner_responses",
    "backburner_queue_depth",
    "backburner_queue_oldest_seconds",
    "backburner_lane_depth",
    "backburner_lane_oldest_seconds",
    "backburner_project_waiting",
    "backburner_database_up",
    "backburner_readers",
    "backburner_sockets",
    "backburner_bus_healthy",
    "backburner_http_answers",
    "backburner_deaths",
    "backburner_responses_accepted",
    "backburner_responses_ended",
    "backburner_cancel_seconds",
    "backburner_cache_lookups",
    "backburner_quota_refusals",
    "backburner_enqueues_dropped",
}
WORKER_METRICS = PROCESS_METRICS | {
    "backburner_response_seconds",
    "backburner_upstream_first_token_seconds",
    "backburner_upstream_turn_seconds",
    "backburner_upstream_retries",
    "backburner_upstream_failovers",
    "backburner_deferrals",
    "backburner_unknown_content",
    "backburner_turn_repeats",
    "backburner_unmet_requests",
    "backburner_cost",
    "backburner_tokens",
    "backburner_tool_call_seconds",
    "backburner_running",
    "backburner_slots",
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

    def total(self, name: str) -> float:
        """The sum of all samples of this name."""
        return sum(value for (sample, _), value in self.values.items() if sample == name)


async def scrape(own_stack: Stack, port: int | None, token: str | None = TOKEN) -> Scrape:
    """Scrapes as Prometheus does, and checks every label value."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with own_stack.session.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(await answer.text()))
    samples = [sample for family in families for sample in family.samples]
    answered = {request.model for request in own_stack.fake.requests}
    for sample in samples:
        for label, value in sample.labels.items():
            free = {"model": value in answered, "project": UUID_TEXT.fullmatch(value)}
            assert label == "le" or free.get(label) or value in LABELS[label], sample
    assert len({sample.labels.get("model") for sample in samples} & answered) <= MODELS
    assert len({sample.labels.get("project") for sample in samples}) <= 2  # none, and the only one
    return Scrape(
        {family.name for family in families},
        {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples},
    )


@pytest.fixture(scope="module")
async def first_port() -> int:
    """The first port that a worker tries."""
    return free_port()


@pytest.fixture(scope="module")
async def collector() -> AsyncIterator[OtlpReceiver]:
    """Where the deployment sends its traces."""
    async with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    first_port: int,
    collector: OtlpReceiver,
) -> AsyncIterator[Stack]:
    """A deployment with traces whose metrics need a token, with two workers on one host."""
    settings = {
        **SHORT_LEASES,
        **TOOL_SETTINGS,
        "BACKBURNER_TRACES__ENABLED": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "BACKBURNER_METRICS__TOKEN": TOKEN,
        "BACKBURNER_METRICS__PORT": str(first_port),
        "BACKBURNER_METRICS__MODELS": str(MODELS),
        "BACKBURNER_METRICS__PROJECTS": "true",
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
    port = re.search(r'"port":(\d+)', worker.log.read_text())
    return int(port[1]) if port else 0


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
    failed = await own_stack.api().create_background(fake.script([status(418)]))
    for response_id in (*completed, failed):
        await own_stack.api().wait_for_end(response_id)
    for code in (429, 500):
        async with own_stack.api().post_stream(fake.script([status(code)])) as stream:
            assert (await stream.to_end())[-1]["type"] == "response.failed"
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
    assert increase("backburner_queue_wait_seconds_count", queue="background") == 14
    assert increase("backburner_queue_wait_seconds_count", queue="interactive") == 3
    assert increase("backburner_first_event_seconds_count") == 14
    assert increase("backburner_events_total") > 13 * 5
    assert increase("backburner_journal_seconds_count") > 0
    assert sum(metrics("backburner_running") for metrics in busy[1:]) == 1
    assert busy[0]("backburner_readers") == 1
    assert (
        after[0]("backburner_responses_accepted_total", mode="background")
        - before[0]("backburner_responses_accepted_total", mode="background")
        == 14
    )
    assert (
        after[0]("backburner_cancel_seconds_count") - before[0]("backburner_cancel_seconds_count")
        == 1
    )
    assert [_fixed_series(metrics) for metrics in after] == [
        _fixed_series(metrics) for metrics in before
    ]

    def total(name: str) -> float:
        return sum(
            new.total(name) - old.total(name) for new, old in zip(after, before, strict=True)
        )

    assert total("backburner_response_seconds_count") == 17
    assert total("backburner_upstream_first_token_seconds_count") == 14
    assert total("backburner_upstream_turn_seconds_count") == 13
    assert total("backburner_tokens_total") == total("backburner_project_tokens_total") > 0
    assert total("backburner_project_responses_ended_total") == 17
    web_requests = {
        (labels["method"], labels["route"], labels["status"])
        for (name, pairs) in after[0].values
        if name == "backburner_http_request_seconds_count"
        for labels in [dict(pairs)]
    }
    assert {
        ("POST", "/v1/responses", "200"),
        ("GET", "/v1/responses/{response_id}", "200"),
        ("POST", "/v1/responses/{response_id}/cancel", "200"),
        ("GET", "/metrics", "200"),
    } <= web_requests


def _fixed_series(metrics: Scrape) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """The series that exist from the start. Others begin with the first model, project or
    route."""
    return {
        (name, labels)
        for name, labels in metrics.values
        if not {"model", "project", "route"} & dict(labels).keys()
    }


async def test_a_response_is_one_trace_that_continues_the_clients(
    own_stack: Stack, fake: FakeUpstream, collector: OtlpReceiver, mcp_servers: McpServers
) -> None:
    trace, client_span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    model = fake.script(tool_turn(("count_read_only", "secret question")), reply("the answer"))
    api = own_stack.api()
    body = {"model": model, "input": "secret question", "tools": [counting_server(mcp_servers)]}
    headers = {"traceparent": f"00-{trace}-{client_span}-01"}
    answer = await api.call("POST", "/responses", body, headers=headers)
    assert answer.status == 200, answer.raw

    def all_spans() -> list[ReceivedSpan]:
        spans = collector.of_trace(trace)
        return spans if {"attempt", "POST /v1/responses"} <= {span.name for span in spans} else []

    spans = await until(all_spans)
    names = {span.id: span.name for span in spans} | {client_span: "client"}
    assert [f"{names[span.parent]} > {span.name}" for span in spans] == [
        "client > POST /v1/responses",
        "POST /v1/responses > queue",
        "POST /v1/responses > attempt",
        "attempt > execute_tool mcp_list_tools",
        "attempt > turn",
        f"turn > chat {model}",
        "attempt > execute_tool count_read_only",
        "attempt > turn",
        f"turn > chat {model}",
    ]
    assert {span.name: span.kind for span in spans if span.kind != "INTERNAL"} == {
        "POST /v1/responses": "SERVER",
        "attempt": "CONSUMER",
        f"chat {model}": "CLIENT",
    }
    assert {span.service for span in spans} == {"backburner-web", "backburner-worker"}
    by_name = {span.name: span.attributes for span in spans}
    web, attempt, call = (by_name[n] for n in ("POST /v1/responses", "attempt", f"chat {model}"))
    assert (web["http.route"], web["http.response.status_code"]) == ("/v1/responses", 200)
    assert web["backburner.response.id"] == attempt["backburner.response.id"] == answer.body["id"]
    assert (attempt["backburner.attempt"], attempt["backburner.status"]) == (1, "completed")
    assert call["gen_ai.operation.name"] == "chat"
    assert call["gen_ai.request.model"] == model
    assert call["gen_ai.response.finish_reasons"] == ["stop"]
    assert call["gen_ai.usage.input_tokens"] > 0
    assert by_name["execute_tool count_read_only"]["gen_ai.tool.name"] == "count_read_only"
    # Content and the ids of traces leave this deployment only on request.
    assert "secret question" not in repr(spans)
    assert "the answer" not in repr(spans)
    assert not any("traceparent" in request.headers for request in fake.requests_for(model))


async def test_the_forwarded_call_of_a_batch_has_a_span(
    own_stack: Stack, fake: FakeUpstream, collector: OtlpReceiver
) -> None:
    client = own_stack.openai()
    answer = {"object": "list", "data": [], "usage": {"prompt_tokens": 5, "total_tokens": 5}}
    model, refusing = fake.script([status(200, answer)]), fake.script([status(400, {})])
    lines = [
        line(name, url="/v1/embeddings", body={"model": name, "input": "secret question"})
        for name in (model, refusing)
    ]
    await until_status(client, await start(client, lines, endpoint="/v1/embeddings"), "completed")

    def calls() -> list[ReceivedSpan]:
        named = {f"embeddings {model}", f"embeddings {refusing}"}
        spans = [span for span in collector.spans if span.name in named]
        return spans if len(spans) == 2 else []

    spans = await until(calls)
    assert {(span.name, span.failed, span.kind) for span in spans} == {
        (f"embeddings {model}", False, "CLIENT"),
        (f"embeddings {refusing}", True, "CLIENT"),
    }
    for span in spans:
        assert span.attributes["gen_ai.operation.name"] == "embeddings"
        assert span.attributes["backburner.upstream"] == "default"

    def attempts() -> set[str]:
        ids = {span.id for span in collector.spans if span.name == "attempt"}
        return ids & {span.parent for span in spans}

    await until(lambda: len(attempts()) == 2)
    assert "secret question" not in repr(spans)


async def test_a_response_that_waits_for_its_upstream_is_counted_and_traced(
    own_stack: Stack, fake: FakeUpstream, collector: OtlpReceiver
) -> None:
    model = fake.script([status(503)], reply("later"))
    response_id = await own_stack.api().create_background(model)
    await own_stack.api().wait_for_end(response_id)
    scrapes = [await scrape(own_stack, port) for port in (await _ports(own_stack)).values()]
    deferrals = {"name": "backburner_deferrals_total", "upstream": "default", "class_": "server"}
    assert sum(metrics(**deferrals) for metrics in scrapes) == 1

    def attempts() -> list[ReceivedSpan]:
        spans = [
            span
            for span in collector.spans
            if (span.name, span.attributes.get("backburner.response.id"))
            == ("attempt", response_id)
        ]
        return spans if len(spans) == 2 else []

    first, second = sorted(await until(attempts), key=lambda span: span.started)
    assert first.attributes["backburner.outcome"] == "deferred"
    assert second.attributes["backburner.outcome"] == "ended"
    assert (first.trace, first.parent) == (second.trace, second.parent)
    turns = [span for span in collector.of_trace(first.trace) if span.name == "turn"]
    assert [turn.attributes.get("error.type") for turn in turns] == ["upstream_503", None]


async def test_a_death_a_recovery_and_a_backlog_are_counted(
    own_stack: Stack, fake: FakeUpstream, collector: OtlpReceiver
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

    def both_spans() -> list[ReceivedSpan]:
        spans = [
            span
            for span in collector.spans
            if span.attributes.get("backburner.response.id") == response_id
            and span.name in ("attempt", "POST /v1/responses")
        ]
        return spans if len(spans) == 2 else []

    request, attempt = sorted(await until(both_spans), key=lambda span: span.started)
    assert attempt.attributes["backburner.attempt"] == 2
    assert (attempt.trace, attempt.parent) == (request.trace, request.id)
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
    assert backlog("backburner_live_processes", kind="worker") == 0
    assert backlog("backburner_live_processes", kind="web") == 1
    assert backlog("backburner_database_bytes") > 1_000_000
    await own_stack.start_worker()
    await asyncio.gather(*map(own_stack.api().wait_for_end, queued))


async def test_boards_and_alerts_read_what_the_processes_export(own_stack: Stack) -> None:
    exported: dict[str, set[str]] = {}
    for port in (own_stack.webs[0].port, *(await _ports(own_stack)).values()):
        with contextlib.suppress(OSError):  # a worker that a test has stopped
            for name, labels in (await scrape(own_stack, port)).values:
                exported.setdefault(name, {"job", "instance"}).update(dict(labels))
    boards = [expression for board in BOARDS for expression in board_expressions(board)]
    assert len(BOARDS) == 2
    for expression in (*alert_expressions(), *boards):
        selectors = [each for each in expression.selectors if not each.name.startswith("node_")]
        known = set[str]()
        for selector in selectors:
            assert selector.name in exported, expression
            assert selector.labels <= exported[selector.name], expression
            for label, value in selector.values:
                assert value in LABELS[label], expression
            known |= exported[selector.name]
        assert expression.groups <= known, expression
        assert expression.legend_labels <= (expression.groups or known), expression


def test_panels_lie_side_by_side_and_have_ids_of_their_own() -> None:
    for board in BOARDS:
        cells: set[tuple[int, int]] = set()
        panels = json.loads(board.read_text())["panels"]
        for panel in panels:
            grid = panel["gridPos"]
            own = {
                (x, y)
                for x in range(grid["x"], grid["x"] + grid["w"])
                for y in range(grid["y"], grid["y"] + grid["h"])
            }
            assert not own & cells, panel["title"]
            assert max(x for x, _ in own) < 24, panel["title"]
            cells |= own
        assert len({panel["id"] for panel in panels}) == len(panels)


def test_each_alert_names_a_problem_that_operations_describes() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for rule in alert_rules():
        for problem in re.findall(r"'([^']+)'", rule["annotations"]["action"]):
            assert f"**{problem}**" in page or f"# {problem}\n" in page, (rule["alert"], problem)


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (apt: prometheus)")
def test_prometheus_accepts_boards_and_alerts_and_the_alerts_fire(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    rules = [
        {"record": f"expression:{number}", "expr": expression.plain}
        for number, expression in enumerate(
            expression for board in BOARDS for expression in board_expressions(board)
        )
    ]
    recorded = tmp_path / "boards.yml"
    recorded.write_text(json.dumps({"groups": [{"name": "boards", "rules": rules}]}))
    tests = tmp_path / "fire.yml"
    tests.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [FIRING]}))
    subprocess.run([PROMTOOL, "check", "rules", ALERTS, recorded], check=True)
    subprocess.run([PROMTOOL, "test", "rules", tests], check=True)


FIRING = {
    "interval": "1m",
    "input_series": [
        {"series": series, "values": values}
        for series, values in (
            ('backburner_queue_oldest_seconds{queue="background"}', "100+60x20"),
            ('backburner_live_processes{kind="worker"}', "0x20"),
            ('backburner_upstream_circuits_open{upstream="a"}', "1x20"),
            ("backburner_deaths_total", "0x10 1x10"),
            ('backburner_attempts_total{outcome="lost"}', "0x10 1x10"),
            ('node_filesystem_avail_bytes{mountpoint="/var/lib/postgresql"}', "5x20"),
            ('node_filesystem_size_bytes{mountpoint="/var/lib/postgresql"}', "100x20"),
            ("backburner_webhooks_oldest_seconds", "3500+60x20"),
            ("backburner_webhook_endpoints_disabled_total", "0x10 1x10"),
            ("backburner_database_up", "1x20"),
            ("backburner_slots", "100x20"),
            ("backburner_running", "10x20"),
        )
    ],
    "promql_expr_test": [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": "15m",
            "exp_samples": [
                {"labels": f'{{alertname="Backburner{name}"}}', "value": 1}
                for name in (
                    "OldestQueued",
                    "NoWorker",
                    "UpstreamDown",
                    "ProcessDied",
                    "LeaseLost",
                    "DiskFull",
                    "WebhooksLate",
                    "WebhookEndpointDisabled",
                )
            ],
        }
    ],
}
"""What the alerts see in a bad quarter of an hour, and those that fire: no others."""


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
    response_ids = [await database.create_response(web=web.id) for _ in range(401)]
    unclear = [UnclearCreate(response_id, database.project, 0) for response_id in response_ids[6:]]
    await fetch(pool, create_queries.VOID_UNCLEAR_CREATES, void_values(unclear, web.id))
    async with pool.connection() as connection:
        await connection.execute(
            "UPDATE responses SET resume_at = clock_timestamp() + interval '1 h' WHERE id = %s",
            [response_ids[5]],
        )
        await connection.execute(
            "UPDATE responses SET failed_upstream = 'u', retrying_since = now() - interval '1 h',"
            " created_at = now() - interval '2 h', enqueued_at = now() - interval '1 h',"
            " resume_at = now() - interval '10 s' WHERE id = %s",
            [response_ids[4]],
        )
        await connection.execute("ANALYZE responses")
        plan = await run_sql(connection, f"EXPLAIN {operations.GAUGES.sql}", {})
        gauges = await fetch(connection, operations.GAUGES, {})
        [retrying] = await fetch(connection, operations.RETRYING_BY_UPSTREAM, {})
    await pool.close()
    assert any("ix_responses_deadline" in row["QUERY PLAN"] for row in plan), plan
    assert {
        (row.queue, row.status, row.waiting, row.retrying, row.responses) for row in gauges
    } == {
        ("background", "queued", True, False, 4),
        ("background", "queued", True, True, 1),
        ("background", "queued", False, False, 1),
    }
    [due] = [row.oldest for row in gauges if row.retrying]
    assert 10 <= due < 600, "it waits for a worker since its pause is over"
    assert (retrying.upstream, retrying.responses, retrying.oldest >= 3600) == ("u", 1, True)
