"""A name in what an upstream gets as the client sent it is judged by what it leads to: when the
request is made, and again by the rules of the moment when it is sent.

`localhost` stands for a public name that leads to this machine: as the project allows a network,
only a look-up shows where it leads.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from models.projects.policy import ProjectEgress, ProjectPolicy
from tests.support import keys
from tests.support.api import JSON, Api, until
from tests.support.batches import results, start, until_status
from tests.support.fake_upstream import FakeUpstream, Script, UpstreamRequest, status
from tests.support.native_script import native_reply
from tests.support.stack import Databases, Stack, SuiteSettings, stack

URL = "http://localhost/mask.png"
HERE, ELSEWHERE = ("127.0.0.0/8", "::1/128"), ("10.77.0.0/16",)
TOOL: JSON = {"type": "image_generation", "input_image_mask": {"image_url": URL}}
EXTRA: JSON = {"image_url": URL}
PARAMETERS: list[tuple[str, JSON, str]] = [
    ("", {"tools": [TOOL]}, "tools[0].input_image_mask.image_url"),
    ("chat-", {"extra": EXTRA}, "extra.image_url"),
]
FILE = """
[upstreams.native]
base_url = "{fake}"
api = "responses"
max_retries = 0

[upstreams.chat]
base_url = "{fake}"
max_retries = 0
passthrough = ["extra"]

[routes]
"*" = "native"
"chat-*" = "chat"
"""


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("names")
    (folder / "backburner.toml").write_text(FILE.format(fake=fake.base_url))
    settings = {"BACKBURNER_CONFIG": str(folder / "backburner.toml")}
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as running:
        yield running


class Project:
    """A project that may reach some networks, and nothing public."""

    def __init__(self, own_stack: Stack, name: str) -> None:
        self.stack, self.name = own_stack, name
        self.api: Api = own_stack.api(key=keys.create(own_stack.dsn, name))

    async def allow(self, *networks: str) -> None:
        policy = ProjectPolicy(egress=ProjectEgress(public=False, allow=networks))
        await self.stack.value(
            "UPDATE projects SET policy = %s::jsonb WHERE name = %s RETURNING id",
            policy.model_dump_json(exclude_defaults=True),
            self.name,
        )


async def project(own_stack: Stack, name: str, *networks: str) -> Project:
    one = await asyncio.to_thread(Project, own_stack, name)
    await one.allow(*networks)
    return one


def busy(_request: UpstreamRequest) -> Script:
    """Each call fails, and is made again later."""
    return [status(503)]


@pytest.mark.parametrize(("prefix", "body", "place"), PARAMETERS, ids=["tool", "passthrough"])
async def test_a_create_refuses_a_name_in_a_parameter_that_leads_to_this_machine(
    own_stack: Stack, fake: FakeUpstream, prefix: str, body: JSON, place: str
) -> None:
    one = await project(own_stack, f"create{len(prefix)}", *ELSEWHERE)
    model = f"{prefix}never{len(prefix)}"
    fake.script(native_reply("never"), name=model)
    answer = await one.api.call("POST", "/responses", {"model": model, "input": "Hi.", **body})
    assert (answer.status, answer.error["param"]) == (400, place)
    assert answer.error["code"] == "invalid_value"
    assert not fake.requests_for(model)


@pytest.mark.parametrize(("prefix", "body", "_place"), PARAMETERS, ids=["tool", "passthrough"])
async def test_a_name_in_a_parameter_is_judged_again_before_each_attempt(
    own_stack: Stack, fake: FakeUpstream, prefix: str, body: JSON, _place: str
) -> None:
    one = await project(own_stack, f"waits{len(prefix)}", *HERE)
    model = f"{prefix}waits{len(prefix)}"
    fake.decide(model, busy)
    waiting = await one.api.create_background(model, **body)
    await until(lambda: fake.requests_for(model))
    await one.allow(*ELSEWHERE)
    ended = await one.api.wait_for_end(waiting)
    assert ended["status"] == "failed"
    assert f"The upstream may not fetch '{URL}'" in ended["error"]["message"]


async def test_a_line_of_a_batch_that_is_forwarded_is_judged_again_when_it_is_sent(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    one = await project(own_stack, "lines", *HERE)
    fake.decide("chat-lines", busy)
    part = {"type": "image_url", "image_url": {"url": URL}}
    body = {"model": "chat-lines", "messages": [{"role": "user", "content": [part]}]}
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
    official = own_stack.openai(key=one.api.key)
    batch = await start(official, [line], endpoint="/v1/chat/completions")
    await until(lambda: fake.requests_for("chat-lines"), 30)
    await one.allow(*ELSEWHERE)
    ended = await until_status(official, batch, "completed")
    found = (await results(official, ended.error_file_id))["one"]["response"]
    assert (found["status_code"], found["body"]["error"]["code"]) == (400, "invalid_value")
    assert f"The upstream may not fetch '{URL}'" in found["body"]["error"]["message"]
    assert found["body"]["error"]["param"] == "messages[0].content[0].image_url.url"
