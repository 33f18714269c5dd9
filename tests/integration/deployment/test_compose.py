"""docker-compose.yml: it fits its schema, and it is safe."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from models.config.groups import WorkerSettings
from models.config.web import WebSettings
from tests.support.deployment_files import (
    COMPOSE,
    DEPLOY,
    ROOT,
    VARIABLE,
    services,
    volumes_and_networks,
    with_defaults,
)
from worker.celery import pool

SERVICES = services()
OURS = ("migrate", "web", "worker", "worker-quarantine", "sandbox")
SECRET = re.compile(r"PASSWORD|SECRET|API_KEY|TOKEN")
EVERY = pytest.mark.parametrize("name", SERVICES)


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", with_defaults(text))
    assert match, text
    return 60 * int(match[1] or 0) + int(match[2] or 0)


def _check_schema(file: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(file),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_compose_accepts_the_file() -> None:
    checked = _check_schema(COMPOSE)
    assert checked.returncode == 0, checked.stdout


def test_the_schema_rejects_a_wrong_key(tmp_path: Path) -> None:
    bad = tmp_path / "docker-compose.yml"
    bad.write_text(COMPOSE.read_text().replace("    command: [web,", "    comand: [web,"))
    assert _check_schema(bad).returncode == 1


def test_no_service_is_missing() -> None:
    assert set(SERVICES) == {"postgres", "redis", *OURS}


TOML = "${BACKBURNER_TOML:-/dev/null}:/etc/backburner.toml:ro"
"""The operator's file; by default a device that reads as empty."""


@EVERY
def test_every_service_volume_and_network_that_is_used_is_defined(name: str) -> None:
    volumes, networks = volumes_and_networks()
    service = SERVICES[name]
    for other, how in service.get("depends_on", {}).items():
        assert other in SERVICES
        if how["condition"] == "service_healthy":
            assert "test" in SERVICES[other]["healthcheck"]
        else:
            assert how["condition"] == "service_completed_successfully"
            assert SERVICES[other]["restart"].startswith("on-failure")
    sources = {volume.partition(":")[0] for volume in service.get("volumes", []) if volume != TOML}
    files = {source for source in sources if source.startswith("./")}
    assert all((ROOT / file).is_file() for file in files)
    assert sources - files <= set(volumes)
    assert service["networks"]
    assert set(service["networks"]) <= set(networks)


@EVERY
def test_a_service_that_keeps_running_has_a_health_check(name: str) -> None:
    service = SERVICES[name]
    check = service["healthcheck"]
    if name == "migrate":
        assert check == {"disable": True}
        assert service["restart"] == "on-failure:3"
    else:
        assert check["test"][0] in {"CMD", "CMD-SHELL"}
        assert {"interval", "timeout", "retries", "start_period"} <= set(check)
        assert service["restart"] == "unless-stopped"


@EVERY
def test_a_container_has_no_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert "no-new-privileges:true" in service["security_opt"]
    assert any(mount.startswith("/tmp") for mount in service["tmpfs"])
    # the product's image sets its user itself
    assert name in OURS or service["user"] not in {"root", "0"}


@EVERY
def test_an_image_of_others_is_pinned_to_a_version_and_a_digest(name: str) -> None:
    image = with_defaults(SERVICES[name]["image"])
    digest = "" if name in OURS else "@sha256:[0-9a-f]{64}"
    assert re.fullmatch(rf"[\w/-]+:(?!latest)[\w.-]+{digest}", image)


@EVERY
def test_docker_waits_longer_than_a_process_needs_to_stop(name: str) -> None:
    allowed = _seconds(SERVICES[name]["stop_grace_period"])
    grace, slack = WorkerSettings().longest_grace.total_seconds(), pool._STOP_SLACK + 2
    needed = {
        "web": WebSettings().grace.total_seconds() + 15,
        "worker": grace + slack,
        "worker-quarantine": grace + slack,
    }
    assert allowed > needed.get(name, 10)


@pytest.mark.parametrize("name", ["web", "worker"])
def test_web_and_workers_can_be_scaled(name: str) -> None:
    service = SERVICES[name]
    assert "container_name" not in service
    assert "hostname" not in service
    assert "replicas" in service["deploy"]
    for port in service.get("ports", []):
        assert VARIABLE.match(port), (
            "a fixed port on the host is one that only one container can have"
        )


@EVERY
def test_the_databases_cannot_be_reached_from_outside(name: str) -> None:
    _, networks = volumes_and_networks()
    service = SERVICES[name]
    assert networks["databases"] == {"internal": True}
    assert with_defaults(networks["sandbox"]["internal"]) == "true"
    assert ("databases" in service["networks"]) == (name != "sandbox")
    assert ("sandbox" in service["networks"]) == ("worker" in name or name == "sandbox")
    assert ("ports" in service) == (name == "web")
    assert ("outside" in service["networks"]) == (name in {"web", "worker", "worker-quarantine"})


def test_the_sandbox_gets_only_its_token_and_its_hosts() -> None:
    sandbox = SERVICES["sandbox"]
    names = ("BACKBURNER_CODE__TOKEN", "BACKBURNER_CODE__ALLOWED_HOSTS")
    assert sandbox["environment"] == dict.fromkeys(names)
    assert not {"env_file", "volumes", "extra_hosts"} & set(sandbox)
    assert sandbox["networks"] == ["sandbox"]


@pytest.mark.parametrize("name", OURS)
def test_sigterm_works_while_python_is_still_importing(name: str) -> None:
    assert SERVICES[name]["init"] is True


@EVERY
def test_no_service_needs_a_newer_engine_or_a_higher_limit_than_the_host_has(name: str) -> None:
    """Engines before 25 refuse `start_interval`, and rootless ones a limit above their own. Web and
    workers raise their limit of open files themselves."""
    assert "start_interval" not in SERVICES[name]["healthcheck"]
    assert SERVICES[name].get("ulimits", {"core": 0}) == {"core": 0}


def test_postgres_has_connections_for_four_webs_and_eight_workers() -> None:
    web, worker = WebSettings().pool_size + 4, WorkerSettings().pool_size + 5
    allowed = next(word for word in SERVICES["postgres"]["command"] if "max_connections" in word)
    assert int(with_defaults(allowed).partition("=")[2]) >= 4 * (web + 1) + 9 * (worker + 1) + 10
    assert f"| web | {web} |" in DEPLOY.read_text()
    assert f"| worker, quarantine worker | {worker} |" in DEPLOY.read_text()


def test_postgres_compresses_with_lz4_and_redis_writes_a_log() -> None:
    assert "-cdefault_toast_compression=lz4" in SERVICES["postgres"]["command"]
    assert {"appendonly yes", "requirepass $$REDIS_PASSWORD"} <= set(
        SERVICES["redis"]["command"][-1].splitlines()
    )


def test_redis_is_never_full_of_cached_answers() -> None:
    lines = set(with_defaults(SERVICES["redis"]["command"][-1]).splitlines())
    assert {"maxmemory 256mb", "maxmemory-policy volatile-ttl"} <= lines
    limit = with_defaults(SERVICES["redis"]["deploy"]["resources"]["limits"]["memory"])
    assert limit == "512m"


# --- variables ---


def _variables() -> list[re.Match[str]]:
    return list(VARIABLE.finditer(COMPOSE.read_text()))


def test_every_variable_is_required_or_has_a_default() -> None:
    assert {variable["operator"] for variable in _variables()} == {":?", ":-"}
    assert all(variable["word"] for variable in _variables())
    assert not re.search(r"(?<!\$)\$(?!\{|\$)", COMPOSE.read_text()), (
        "a variable without braces has neither"
    )


def test_no_secret_has_a_default() -> None:
    secrets = [variable for variable in _variables() if SECRET.search(variable["name"])]
    assert {variable["name"] for variable in secrets} == {"POSTGRES_PASSWORD", "REDIS_PASSWORD"}
    assert {variable["operator"] for variable in secrets} == {":?"}


@EVERY
def test_a_secret_is_only_in_the_environment_and_only_as_a_variable(name: str) -> None:
    service = SERVICES[name]
    for key, value in service.get("environment", {}).items():
        if SECRET.search(key) and value is not None:  # None: the value of .env, if there is one
            assert re.fullmatch(r"\$\{\w+:\?[^}]*\}", value), key
        if key.endswith("_URL") and value is not None:
            password = re.search(r"://[^@/]*:([^@]+)@", VARIABLE.sub("a variable", value))
            assert password is None or password[1] == "a variable", key
    elsewhere = json.dumps({key: value for key, value in service.items() if key != "environment"})
    assert not [
        variable["name"]
        for variable in VARIABLE.finditer(elsewhere)
        if SECRET.search(variable["name"])
    ]


@pytest.mark.parametrize(
    ("environment", "address", "is_believed"),
    [
        ({}, "172.18.0.1", True),
        ({}, "203.0.113.1", False),
        ({"BACKBURNER_LISTEN": "0.0.0.0:8000"}, "172.18.0.1", False),
        (
            {"BACKBURNER_LISTEN": "0.0.0.0:8000", "FORWARDED_ALLOW_IPS": "10.0.0.7"},
            "10.0.0.7",
            True,
        ),
    ],
)
def test_forwarded_addresses_are_believed_of_a_proxy_only(
    environment: dict[str, str], address: str, is_believed: bool
) -> None:
    """Who may send them is a network of Docker only while nobody else can reach the port."""
    text = SERVICES["web"]["environment"]["FORWARDED_ALLOW_IPS"]
    believed = VARIABLE.sub(lambda found: environment.get(found["name"], found["word"]), text)
    application: Any = None
    middleware = ProxyHeadersMiddleware(application, believed)
    assert (address in middleware.trusted_hosts) is is_believed
    assert "*" not in text


def test_every_variable_is_explained() -> None:
    text = DEPLOY.read_text()
    assert [
        name for name in {variable["name"] for variable in _variables()} if f"`{name}`" not in text
    ] == []


@pytest.mark.parametrize("name", ["web", "worker", "worker-quarantine"])
def test_web_and_workers_get_their_settings(name: str) -> None:
    service: dict[str, Any] = SERVICES[name]
    required = {
        "DATABASE_URL",
        "REDIS_URL",
        "BACKBURNER_UPSTREAM__BASE_URL",
        "BACKBURNER_UPSTREAM__API_KEY",
    }
    assert set(service["environment"]) - {"FORWARDED_ALLOW_IPS"} == required | {
        "BACKBURNER_METRICS__HOST",
        "BACKBURNER_METRICS__PORT",
        "BACKBURNER_CODE__SANDBOXES",
        "BACKBURNER_CODE__TOKEN",
        "BACKBURNER_CODE__ALLOWED_HOSTS",
        "BACKBURNER_CONFIG",
        "BACKBURNER_FILES__FOLDER",
        "BACKBURNER_WEB__SPOOLS",
        "BACKBURNER_WEB__SPOOLS_PER_PROJECT",
    }
    folder = service["environment"]["BACKBURNER_FILES__FOLDER"]
    assert service["volumes"] == [TOML, f"files:{folder}"]
    assert service["environment"]["BACKBURNER_CONFIG"] == TOML.split(":")[2]
    assert "BACKBURNER_METRICS__TOKEN=" in DEPLOY.read_text(), "without it there are no metrics"
    assert service["env_file"] == [{"path": "backburner.env", "required": False}]
    assert set(service["depends_on"]) == {"migrate", "postgres", "redis"}
