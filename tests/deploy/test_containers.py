"""A deployment in containers, from nothing to its end, by the commands of docs/deploy.md.

The tests are steps: each needs those before it, and `tests/deploy/run` stops at the first that
fails.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
import requests
from openai.types.responses.tool_param import CodeInterpreter

from cli.embedded.process import free_port, port_is_free
from models.db.schema import newest_revision
from models.version import VERSION
from tests.deploy.engine import (
    CURRENT,
    PREVIOUS,
    PROJECT,
    SANDBOX,
    Checkout,
    base_images,
    copy_checkout,
    previous_release,
    wait_until,
)
from tests.deploy.load import Load
from tests.support.certificates import Certificate, self_signed
from tests.support.reverse_proxies import Nginx

pytestmark = [pytest.mark.docker, pytest.mark.long, pytest.mark.timeout(1200)]

Record = Callable[[str, object], None]
"""Adds a name and a value to the table of steps (`steps.py`)."""

SERVICES = {"postgres", "redis", "web", "worker", "worker-quarantine", "upstream"}


def _two_free_ports() -> int:
    while not port_is_free("127.0.0.1", (port := free_port()) + 1):
        pass
    return port


class Deployment:
    """What the steps share."""

    def __init__(self, checkout: Checkout, folder: Path) -> None:
        self.checkout = checkout
        self.folder = folder
        self.key = ""

    @property
    def url(self) -> str:
        """The address of the first web container, as docs/deploy.md names it."""
        [web] = self.checkout.containers("web")
        return f"http://127.0.0.1:{self.checkout.port_of(web)}"

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    def wait_for_end(self, response_id: str, within: float = 120) -> str:
        """The output text of a response when it has completed."""
        client = self.client()
        wait_until(
            lambda: client.responses.retrieve(response_id).status not in ("queued", "in_progress"),
            within,
        )
        ended = client.responses.retrieve(response_id)
        assert ended.status == "completed", ended
        return ended.output_text


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A copy of this repository, and no container of an earlier run. At the end its containers,
    volumes and images of the server are removed; the base images stay."""
    folder = tmp_path_factory.mktemp("deployment")
    copy_checkout(folder / "checkout")
    checkout = Checkout(folder / "checkout", _two_free_ports())
    (checkout.folder / ".env").write_text(
        "POSTGRES_PASSWORD=0\nREDIS_PASSWORD=0\n"
        "BACKBURNER_UPSTREAM__BASE_URL=http://upstream:8001/v1\n"
        "BACKBURNER_UPSTREAM__API_KEY=demo\n"
    )
    images = f"{CURRENT} {PREVIOUS} {SANDBOX}"
    end = f"docker compose down --volumes --remove-orphans; docker rmi -f {images}"
    checkout.run(f"{end} 2>/dev/null || true")
    yield Deployment(checkout, folder)
    checkout.run(f"docker compose logs --no-color > {folder}/containers.log 2>&1; {end}")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("certificate"))


def test_base_images(record_property: Record) -> None:
    """Pulled, or stand-ins."""
    record_property("images", ", ".join(base_images().values()))


def test_build_up_and_key(deployment: Deployment) -> None:
    checkout = deployment.checkout
    settings, start, request, *_ = checkout.documented("## From nothing to running")
    checkout.run(
        settings.replace("https://api.openai.com/v1", "http://upstream:8001/v1").replace(
            "sk-...", "demo"
        )
    )
    *_, deployment.key = checkout.run(start).split()
    assert deployment.key.startswith("bb-")
    assert {name for name in SERVICES if checkout.containers(name)} == SERVICES
    answer = checkout.run(request.replace("bb-...", deployment.key).replace("gpt-5-mini", "demo"))
    assert '"status":"completed"' in answer.replace(" ", "")
    login = requests.get(f"{deployment.url}/console/login", timeout=10)
    assert (login.status_code, 'name="token"' in login.text) == (200, True)


def test_image_is_small_unprivileged_and_of_this_version(
    deployment: Deployment, record_property: Record
) -> None:
    checkout = deployment.checkout
    layers = [
        int(line)
        for line in checkout.run(
            f"docker history --no-trunc --human=false --format '{{{{.Size}}}}' {CURRENT}"
        ).split()
    ]
    record_property("MB", f"{sum(layers) / 1e6:.0f}")
    record_property("MB without the base", f"{sum(layers[:-1]) / 1e6:.0f}")
    assert checkout.run("docker compose exec web id -u").strip() == "10001"
    refused = checkout.run("docker compose exec web touch /app/new 2>&1 || true")
    assert "Read-only file system" in refused
    version = checkout.run("docker compose exec web backburner --version").split()[-1]
    alive = requests.get(f"{deployment.url}/healthz", timeout=10).json()
    assert version == alive["version"] == VERSION
    # the package's data has been cut down to what this client reads
    client = 'import botocore.session as s; s.get_session().create_client("s3", "eu-central-1")'
    checkout.run(f"docker compose exec web python -c '{client}'")


def test_background_response_survives_a_killed_worker(deployment: Deployment) -> None:
    checkout, client = deployment.checkout, deployment.client()
    numbers, response_id = [], ""
    stream = client.responses.create(
        model="demo-slow", input="Tell me slowly.", background=True, stream=True
    )
    for event in stream:
        numbers.append(event.sequence_number)
        if event.type == "response.created":
            response_id = event.response.id
        if event.sequence_number >= 8:
            break
    stream.close()
    [worker] = checkout.containers("worker")
    checkout.run(f"docker kill {worker} && docker start {worker}")
    for event in client.responses.retrieve(response_id, stream=True, starting_after=8):
        numbers.append(event.sequence_number)
        if event.sequence_number >= 30:
            break
    assert numbers == list(range(31)), "an event is missing or was sent twice"
    assert client.responses.cancel(response_id).status == "cancelled"


CHART = """
import pandas, matplotlib.pyplot as plot
sales = pandas.read_csv("/mnt/data/sales.csv")
sales.plot(x="month", y="sold").figure.savefig("/mnt/data/sales.png")
print(int(sales.sold.sum()))
"""
OUTSIDE = """
import os, socket
for attempt in (
    lambda: socket.create_connection(("127.0.0.1", 8600), 3),
    lambda: os.listdir("/app"),
    lambda: os.listdir("/sessions"),
    lambda: os.kill(1, 9),
):
    try:
        attempt()
    except OSError as error:
        print(type(error).__name__)
"""


def test_code_runs_in_the_sandbox_of_the_profile(
    deployment: Deployment, record_property: Record
) -> None:
    """The model of the demo writes the user's text as the code."""
    checkout = deployment.checkout
    checkout.run(
        "printf '%s\\n' COMPOSE_PROFILES=code BACKBURNER_CODE__SANDBOXES=http://sandbox:8600"
        " BACKBURNER_CODE__TOKEN=$(openssl rand -hex 32) >> .env\n"
        "docker compose up -d --build --wait"
    )
    walls = checkout.run("docker compose logs --no-log-prefix sandbox")
    record_property("walls", walls.partition("sandbox_walls")[2].partition("\n")[0])
    assert checkout.run("docker compose exec sandbox id -u").strip() == "10001"
    client = deployment.client()
    sales = ("sales.csv", b"month,sold\n1,3\n2,5\n3,4\n")
    uploaded = client.files.create(file=sales, purpose="user_data")
    container = client.containers.create(name="sales", file_ids=[uploaded.id])
    tool: CodeInterpreter = {"type": "code_interpreter", "container": container.id}
    for code, printed in (
        (CHART, ["12"]),
        (OUTSIDE, 4 * ["PermissionError"]),
    ):
        made = client.responses.create(
            model="demo-tools", input=code, tools=[tool], include=["code_interpreter_call.outputs"]
        )
        [call] = (item for item in made.output if item.type == "code_interpreter_call")
        logs = "".join(each.logs for each in call.outputs or () if each.type == "logs")
        assert logs.split() == printed, made
    files = {file.path: file.id for file in client.containers.files.list(container.id)}
    chart = client.containers.files.content.retrieve(
        files["/mnt/data/sales.png"], container_id=container.id
    )
    assert chart.read().startswith(b"\x89PNG")
    own_users = f"{checkout.environment['COMPOSE_FILE']}:deploy/compose/own-users.yml"
    checkout.run("docker compose up -d --wait sandbox", COMPOSE_FILE=own_users)
    assert '"own_users":true' in checkout.run("docker compose logs --no-log-prefix sandbox")
    users = (_user_of_a_session(client), _user_of_a_session(client))
    assert len({"10001", "0", *users}) == 4


def _user_of_a_session(client: openai.OpenAI) -> str:
    made = client.responses.create(
        model="demo-tools",
        input="import os\nprint(os.getuid())",
        tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
        include=["code_interpreter_call.outputs"],
    )
    [call] = (item for item in made.output if item.type == "code_interpreter_call")
    return "".join(each.logs for each in call.outputs or () if each.type == "logs").strip()


def test_scale_to_three_workers(deployment: Deployment) -> None:
    checkout = deployment.checkout
    [scale, *_] = checkout.documented("## Sizing")
    checkout.run(scale)
    assert len(checkout.containers("worker")) == 3

    def workers() -> int:
        ready = requests.get(f"{deployment.url}/readyz", timeout=10).json()
        return int(ready["workers"].get("worker", 0))

    wait_until(lambda: workers() == 3)
    made = deployment.client().responses.create(model="demo", input="Hello", background=True)
    deployment.wait_for_end(made.id)


def test_backup_and_restore(deployment: Deployment) -> None:
    checkout, client = deployment.checkout, deployment.client()
    kept = client.responses.create(model="demo", input="before the backup")
    running = client.responses.create(model="demo-slow", input="slowly", background=True)
    dump, restore = checkout.documented("## Backup and restore")[:2]
    checkout.run(dump)
    lost = client.responses.create(model="demo", input="after the backup")
    checkout.run(restore)
    client = deployment.client()
    assert client.responses.retrieve(kept.id).output_text == kept.output_text
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(lost.id)
    assert deployment.wait_for_end(running.id), "it ran again"


def test_down(deployment: Deployment) -> None:
    checkout = deployment.checkout
    checkout.run("docker compose down --volumes")
    assert checkout.run(f"docker volume ls -q --filter name={PROJECT}_").split() == []
    assert checkout.run(f"docker ps -aq --filter name={PROJECT}-").split() == []


def test_build_and_up_of_the_previous_release(deployment: Deployment) -> None:
    commit = previous_release()
    copy_checkout(deployment.folder / "previous", commit)
    checkout = deployment.checkout
    checkout.run(
        f"docker build --quiet --network host --build-arg PYTHON_IMAGE=$PYTHON_IMAGE"
        f" --tag {PREVIOUS} {deployment.folder}/previous"
    )
    checkout.environment["UPSTREAM_IMAGE"] = PREVIOUS
    checkout.run("docker compose up -d --wait --no-build", BACKBURNER_IMAGE=PREVIOUS)
    deployment.key = checkout.run("docker compose exec web backburner keys create").split()[-1]


def _replace_web(deployment: Deployment, image: str, nginx: Nginx) -> None:
    """Replaces the web container by one of another image, as docs/deploy.md says."""
    checkout = deployment.checkout
    [old] = checkout.containers("web")
    start, stop = checkout.documented("### Without refused requests")[:2]
    checkout.run(start, BACKBURNER_IMAGE=image)
    [new] = [name for name in checkout.containers("web") if name != old]
    nginx.send_to([checkout.port_of(new)])
    checkout.run(stop.replace("OLD", old), BACKBURNER_IMAGE=image)
    assert checkout.containers("web") == [new]


@pytest.fixture
def nginx(deployment: Deployment, certificate: Certificate, tmp_path: Path) -> Iterator[Nginx]:
    [web] = deployment.checkout.containers("web")
    port = deployment.checkout.port_of(web)
    with Nginx(tmp_path / "nginx", certificate, [port]) as running:
        yield running


def _used_images(checkout: Checkout) -> set[str]:
    names = " ".join(
        name
        for service in ("web", "worker", "worker-quarantine")
        for name in checkout.containers(service)
    )
    return set(checkout.run(f"docker inspect --format '{{{{.Config.Image}}}}' {names}").split())


@pytest.mark.parametrize("image", [CURRENT, PREVIOUS], ids=["upgrade", "downgrade"])
def test_rolling_replacement_refuses_no_request(
    deployment: Deployment,
    certificate: Certificate,
    nginx: Nginx,
    image: str,
    record_property: Record,
) -> None:
    """To the new release with its migration, and back to the previous one on the new schema."""
    checkout = deployment.checkout
    if image == CURRENT:
        checkout.run("docker compose build", BACKBURNER_IMAGE=image)
    slow = deployment.client().responses.create(model="demo-slow", input="x", background=True)
    with Load(nginx.base_url, deployment.key, verify=str(certificate.file)) as load:
        load.wait_for_answers(20)
        checkout.run("docker compose run --rm migrate", BACKBURNER_IMAGE=image)
        ready = requests.get(f"{deployment.url}/readyz", timeout=10)
        assert (ready.status_code, ready.json()["schema"]) == (200, newest_revision()), ready.text
        load.wait_for_answers(20)
        _replace_web(deployment, image, nginx)
        load.wait_for_answers(20)
        assert _used_images(checkout) == {image}
    record_property("requests answered", load.answered)
    record_property("refused", len(load.refused))
    assert load.refused == []
    for response_id in load.open_ids:
        deployment.wait_for_end(response_id)
    assert deployment.wait_for_end(slow.id)


def test_password_and_key_are_in_no_log(deployment: Deployment) -> None:
    checkout = deployment.checkout
    logs = checkout.run("docker compose logs --no-color")
    files = [checkout.folder / name for name in (".env", "backburner.env")]
    values = [line.partition("=")[2] for file in files for line in file.read_text().split()]
    assert deployment.key not in logs
    assert not [value for value in values if len(value) > 20 and value in logs]
