"""The models that clients' programs and the snippets of docs/clients.md ask."""

import pytest

from cli.demo_upstream import answer_to
from tests.support.clients.scripted_model import puppet
from tests.support.fake_upstream import FakeUpstream, Request, Step, call, done, finish, text, usage

PUPPETS = ("puppet", "gpt-4.1-mini", "gpt-5.5", "gpt-6.1-sol")
"""LlamaIndex and Codex look names up, and do more for those they know."""
DEMOS = {"demo": "demo", "demo-tools": "demo-tools", "gpt-4.1": "demo"}
"""What the page calls a model -> the demo model that stands behind it."""


@pytest.fixture(autouse=True, scope="session")
def models(fake: FakeUpstream) -> None:
    """Hold them ready."""
    for name in PUPPETS:
        fake.decide(name, puppet)
    for name in DEMOS:
        fake.decide(name, _demo)


def _demo(request: Request) -> list[Step]:
    """What the demo upstream of `./dev up` would say."""
    answer = answer_to({**request.body, "model": DEMOS[request.model]})
    said = (
        [call(0, answer.call.id, answer.call.name, answer.call.arguments)]
        if answer.call
        else [text(*answer.words)]
    )
    return [*said, finish(answer.finish_reason), usage(), done()]
