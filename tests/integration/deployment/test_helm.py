"""The Helm chart: Helm's own library lints and renders it, and Kubernetes' schemas fit the result.

Both packages are large and not among the tools of the tests: `pip install helm-python-sdk
kubernetes-validate` (tried: 0.2.2 with Helm 4.2.3, 1.37.0).
"""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import psycopg
import pytest
from ruamel.yaml import YAML

from models.config.groups import WorkerSettings
from models.config.web import WebSettings
from models.version import VERSION
from tests.support.deployment_files import ROOT
from tests.support.promql import ALERTS
from tests.support.stack import Databases
from worker.celery import pool

CHART = ROOT / "deploy" / "helm" / "backburner"
HINT = "helm-python-sdk or kubernetes-validate is not installed"
KUBERNETES = ("1.29", "1.33", "1.37")
REQUIRED: dict[str, Any] = {
    "image": {"repository": "registry.test/backburner"},
    "existingSecret": "credentials",
}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "image": {**REQUIRED["image"], "digest": f"sha256:{'0' * 64}", "pullSecrets": ["pull"]},
        "config": '[routes]\n"*" = "default"\n',
        "settings": {"BACKBURNER_LIMITS__WALL_CLOCK": "2h", "BACKBURNER_TRACES__ENABLED": True},
        "files": {"existingClaim": "files"},
        "web": {
            "autoscaling": {"enabled": True},
            "nodeSelector": {"pool": "web"},
            "trustedProxies": ["10.8.0.0/16", "10.9.0.1"],
            "podAnnotations": {"team": "models"},
        },
        "worker": {"keda": {"enabled": True}, "tolerations": [{"operator": "Exists"}]},
        "service": {"annotations": {"team": "models"}},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/b"}},
        "ingress": {"enabled": True, "host": "bb.test", "className": "nginx", "tlsSecret": "tls"},
        "secretChecksum": "1",
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/ca.pem", "subPath": "ca.pem"}],
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True},
        },
        "networkPolicy": {
            "webFrom": [{"namespaceSelector": {}}],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "egress": [{"ports": [{"port": 5432}]}],
        },
    },
    "without policies": {"networkPolicy": {"enabled": False}},
    "code": {
        "sandbox": {
            "enabled": True,
            "replicas": 2,
            "image": {"repository": "registry.test/sandbox"},
            "runtimeClassName": "kata",
        },
        "networkPolicy": {"egress": [{"ports": [{"port": 5432}]}]},
    },
    "code with hosts": {
        "sandbox": {
            "enabled": True,
            "image": {"repository": "registry.test/sandbox"},
            "allowedHosts": ["pypi.org", "models.lan:8443", "10.1.0.0/16"],
        },
    },
}
Manifest = dict[str, Any]


def _values(case: str) -> dict[str, Any]:
    return REQUIRED | CASES[case]


def _render(values: dict[str, Any]) -> list[Manifest]:
    helm = pytest.importorskip("helm_python", reason=HINT)
    with helm.Chart.load(str(CHART)) as chart:
        rendered = chart.render(values, name="bb", namespace="models")
    documents = [
        document
        for name, text in sorted(rendered.items())
        if name.endswith(".yaml")
        for document in YAML(typ="safe").load_all(text)
    ]
    return [document for document in documents if document]


def _of_kind(kind: str, values: dict[str, Any]) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in _render(values) if each["kind"] == kind}


def _pods(values: dict[str, Any]) -> dict[str, Manifest]:
    """The specifications of all pods, by the names of what makes them."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in _render(values)
        if each["kind"] in {"Deployment", "Job", "StatefulSet"}
    }


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_no_fault_in_the_chart(case: str) -> None:
    helm = pytest.importorskip("helm_python", reason=HINT)
    found = helm.lint(str(CHART), _values(case), strict=True)
    assert found["errors"] == []
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("case", CASES)
def test_every_object_fits_the_schemas_of_kubernetes(case: str) -> None:
    """All but those of KEDA and the Prometheus operator, whose schemas Kubernetes does not have."""
    schemas = pytest.importorskip("kubernetes_validate", reason=HINT)
    foreign = ("keda.sh", "monitoring.coreos.com")
    objects = [
        each for each in _render(_values(case)) if not each["apiVersion"].startswith(foreign)
    ]
    assert len(objects) >= 6
    for version in KUBERNETES:
        for each in objects:
            schemas.validate(each, version, strict=True)


def test_only_workers_reach_the_sandboxes_which_get_only_the_token() -> None:
    values = _values("code")
    pods = _pods(values)
    [container] = pods["bb-backburner-sandbox"]["containers"]
    assert "envFrom" not in container
    assert [each["name"] for each in container["env"]] == ["BACKBURNER_CODE__TOKEN"]
    policy = _of_kind("NetworkPolicy", values)["bb-backburner-sandbox"]["spec"]
    allowed = [each["podSelector"]["matchLabels"] for each in policy["ingress"][0]["from"]]
    component = "app.kubernetes.io/component"
    assert [each[component] for each in allowed] == ["worker", "quarantine"]
    assert policy["egress"] == []
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    worker = {each["name"]: each for each in pods["bb-backburner-worker"]["containers"][0]["env"]}
    assert worker["BACKBURNER_CODE__SANDBOXES"]["value"] == ",".join(
        f"http://bb-backburner-sandbox-{number}.bb-backburner-sandbox:8600" for number in range(2)
    )


def test_sessions_may_have_users_of_their_own() -> None:
    values = _values("code")
    values["sandbox"] = values["sandbox"] | {"ownUsers": True}
    [container] = _pods(values)["bb-backburner-sandbox"]["containers"]
    context = container["securityContext"]
    added = ["CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID"]
    assert (context["runAsUser"], context["runAsNonRoot"]) == (0, False)
    assert context["capabilities"] == {"drop": ["ALL"], "add": added}
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]


def test_sandboxes_reach_the_ports_of_allowed_hosts_and_no_private_address() -> None:
    values = _values("code with hosts")
    pods = _pods(values)
    for name in ("sandbox", "worker", "web"):
        [container] = pods[f"bb-backburner-{name}"]["containers"]
        env = {each["name"]: each.get("value") for each in container["env"]}
        assert env["BACKBURNER_CODE__ALLOWED_HOSTS"] == "pypi.org,models.lan:8443,10.1.0.0/16"
    policy = _of_kind("NetworkPolicy", values)["bb-backburner-sandbox"]["spec"]
    names, hosts = policy["egress"]
    assert [each["port"] for each in names["ports"]] == [53, 53]
    assert [each["port"] for each in hosts["ports"]] == [80, 443, 8443]
    blocks = {each["ipBlock"]["cidr"]: each["ipBlock"].get("except") for each in hosts["to"]}
    assert set(blocks) == {"0.0.0.0/0", "2000::/3", "10.1.0.0/16"}
    assert "10.0.0.0/8" in blocks["0.0.0.0/0"]


def test_a_missing_value_or_a_secret_in_the_values_is_refused() -> None:
    helm = pytest.importorskip("helm_python", reason=HINT)
    with pytest.raises(helm.HelmError, match=r"existingSecret"):
        _render({"image": REQUIRED["image"]})
    with helm.Chart.load(str(CHART)) as chart, pytest.raises(helm.HelmError):
        chart.validate_schema({**REQUIRED, "databaseUrl": "postgresql://user:password@host/db"})


def _objects(value: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """The paths of all objects in these values whose keys the chart chooses."""
    free = ("settings", "labels", "nodeSelector", "requests", "limits")
    if isinstance(value, dict) and not (path and (path[-1] in free or "nnotations" in path[-1])):
        yield path
        for name, each in value.items():
            yield from _objects(each, *path, name)


def test_a_misspelt_value_is_refused_at_every_level() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    accepted = jsonschema_rs.validator_for(schema)
    defaults = YAML(typ="safe").load(CHART / "values.yaml")
    accepted.validate(defaults)
    for case in CASES:
        accepted.validate(_values(case))
    paths = list(_objects(defaults))
    assert ("worker", "keda") in paths
    for path in paths:
        values: dict[str, Any] = {"replica": 3}
        for name in reversed(path):
            values = {name: values}
        assert not accepted.is_valid({**REQUIRED, **values}), path


def test_the_console_is_at_the_name_of_the_ingress() -> None:
    [ingress] = _of_kind("Ingress", _values("everything")).values()
    [rule] = ingress["spec"]["rules"]
    assert [path["path"] for path in rule["http"]["paths"]] == ["/v1", "/console"]
    pods = _pods(_values("everything"))
    [web] = pods["bb-backburner-web"]["containers"]
    assert {"name": "BACKBURNER_ALLOWED_HOSTS", "value": rule["host"]} in web["env"]
    own = {"settings": {"BACKBURNER_ALLOWED_HOSTS": "bb.test,other.test"}}
    [web] = _pods(_values("everything") | own)["bb-backburner-web"]["containers"]
    names = [each["name"] for each in web["env"]]
    assert names.count("BACKBURNER_ALLOWED_HOSTS") == 1


def test_a_certificate_reaches_all_pods_and_a_role_those_that_read_files() -> None:
    values = _values("everything")
    [account] = _of_kind("ServiceAccount", values)
    for name, pod in _pods(values).items():
        assert {"name": "ca", "configMap": {"name": "ca"}} in pod["volumes"]
        [container] = pod["containers"]
        assert "/etc/ssl/ca.pem" in [mount["mountPath"] for mount in container["volumeMounts"]]
        assert "HTTPS_PROXY" in [each["name"] for each in container["env"]]
        # The migration runs before the account is made.
        assert pod.get("serviceAccountName") == (None if name.endswith("migrate") else account)


def test_a_changed_secret_replaces_the_pods() -> None:
    def annotations(checksum: str) -> dict[str, dict[str, str]]:
        deployments = _of_kind("Deployment", _values("everything") | {"secretChecksum": checksum})
        return {
            name: each["spec"]["template"]["metadata"]["annotations"]
            for name, each in deployments.items()
        }

    before, after = annotations("1"), annotations("2")
    assert before["bb-backburner-web"]["team"] == "models"
    for name in ("web", "worker", "quarantine"):
        assert before[f"bb-backburner-{name}"] != after[f"bb-backburner-{name}"]


def test_web_and_workers_are_spread_over_machines() -> None:
    deployments = _of_kind("Deployment", REQUIRED)
    for name in ("bb-backburner-web", "bb-backburner-worker"):
        pods = deployments[name]["spec"]["template"]
        spread = pods["spec"]["topologySpreadConstraints"]
        assert "kubernetes.io/hostname" in [each["topologyKey"] for each in spread]
        for each in spread:
            chosen = each["labelSelector"]["matchLabels"]
            assert chosen.items() <= pods["metadata"]["labels"].items()


def test_prometheus_finds_all_processes_and_has_the_documented_alerts() -> None:
    values = _values("everything")
    [rules] = _of_kind("PrometheusRule", values).values()
    assert rules["spec"] == YAML(typ="safe").load(ALERTS)
    [services] = _of_kind("ServiceMonitor", values).values()
    [service] = _of_kind("Service", values).values()
    chosen = services["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= service["metadata"]["labels"].items()
    [pods] = _of_kind("PodMonitor", values).values()
    for found, port in (
        (services["spec"]["endpoints"], "http"),
        (pods["spec"]["podMetricsEndpoints"], "metrics"),
    ):
        [endpoint] = found
        assert endpoint["port"] == port
        assert endpoint["authorization"]["credentials"]["name"] == REQUIRED["existingSecret"]
    [expression] = pods["spec"]["selector"]["matchExpressions"]
    for name, pod in _of_kind("Deployment", values).items():
        labels = pod["spec"]["template"]["metadata"]["labels"]
        is_chosen = labels["app.kubernetes.io/component"] in expression["values"]
        assert is_chosen is not name.endswith("web")


@pytest.mark.parametrize("case", CASES)
def test_a_pod_has_no_rights_and_gets_secrets_by_their_name_only(case: str) -> None:
    pods = _pods(_values(case))
    assert set(pods) - {"bb-backburner-sandbox"} == {
        "bb-backburner-web",
        "bb-backburner-worker",
        "bb-backburner-quarantine",
    } | {"bb-backburner-migrate"}
    for name, pod in pods.items():
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsUser"] == 10001
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        if name.endswith(("migrate", "sandbox")):
            assert "envFrom" not in container, "it needs one secret only"
        else:
            assert container["envFrom"] == [{"secretRef": {"name": "credentials"}}]


def test_web_believes_the_proxies_that_are_named() -> None:
    [web] = _pods(_values("everything"))["bb-backburner-web"]["containers"]
    assert {"name": "FORWARDED_ALLOW_IPS", "value": "10.8.0.0/16,10.9.0.1"} in web["env"]
    helm = pytest.importorskip("helm_python", reason=HINT)
    with helm.Chart.load(str(CHART)) as chart, pytest.raises(helm.HelmError):
        chart.validate_schema({**REQUIRED, "web": {"trustedProxies": ["*"]}})


def test_kubernetes_waits_longer_than_a_process_needs_to_stop() -> None:
    pods = _pods(REQUIRED)
    web = pods["bb-backburner-web"]
    drain = int(web["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = WebSettings().grace.total_seconds()
    assert web["terminationGracePeriodSeconds"] >= drain + grace + 15
    needed = WorkerSettings().longest_grace.total_seconds() + pool._STOP_SLACK + 2
    for name in ("worker", "quarantine"):
        assert pods[f"bb-backburner-{name}"]["terminationGracePeriodSeconds"] > needed


def test_the_migration_runs_before_the_pods_of_a_release() -> None:
    [job] = _of_kind("Job", REQUIRED).values()
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    for deployment in _of_kind("Deployment", REQUIRED).values():
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_what_is_scaled_by_load_has_no_number_of_replicas() -> None:
    values = _values("everything")
    deployments = _of_kind("Deployment", values)
    assert "replicas" not in deployments["bb-backburner-web"]["spec"]
    assert "replicas" not in deployments["bb-backburner-worker"]["spec"]
    assert deployments["bb-backburner-quarantine"]["spec"]["replicas"] == 1
    [hpa] = _of_kind("HorizontalPodAutoscaler", values).values()
    assert hpa["spec"]["scaleTargetRef"]["name"] in deployments
    assert _of_kind("ScaledObject", REQUIRED) == {}


async def test_kedas_query_counts_open_responses(database_server: Databases) -> None:
    [scaled] = _of_kind("ScaledObject", _values("everything")).values()
    assert scaled["spec"]["scaleTargetRef"]["name"] == "bb-backburner-worker"
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["type"] == "postgresql"
    [authentication] = _of_kind("TriggerAuthentication", _values("everything")).values()
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert authentication["spec"]["secretTargetRef"] == [
        {"parameter": "connection", "name": "credentials", "key": "DATABASE_URL"}
    ]
    with psycopg.connect(await database_server.create_copy()) as connection:
        query = trigger["metadata"]["query"]
        assert connection.execute(query).fetchone() == (0,)
        connection.execute("SET enable_seqscan = off")
        plan = str(connection.execute(f"EXPLAIN {query}".encode()).fetchall())
    assert "Index" in plan


def test_the_chart_has_the_version_of_the_server() -> None:
    chart = YAML(typ="safe").load(CHART / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
