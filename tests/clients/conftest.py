"""The models of clients' programs and of the snippets of docs/clients.md."""

import pytest

from cli.demo_upstream.replies import reply_to
from tests.support.clients.scripted_model import answer_from_prompt
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    UpstreamRequest,
    call,
    done,
    finish,
    text,
    usage,
)

PROMPT_DRIVEN_MODELS = ("puppet", "gpt-4.1-mini", "gpt-5.5", "gpt-6.1-sol")
"""LlamaIndex and Codex have lists of names and do more for known ones."""
DEMO_MODELS = {"demo": "demo", "demo-tools": "demo-tools", "gpt-4.1": "demo"}
"""Name of a model in the page -> demo model that answers."""


@pytest.fixture(autouse=True, scope="session")
def models(fake: FakeUpstream) -> None:
    """Registers the models."""
    for name in PROMPT_DRIVEN_MODELS:
        fake.decide(name, answer_from_prompt)
    for name in DEMO_MODELS:
        fake.decide(name, _demo)


def _demo(request: UpstreamRequest) -> list[Step]:
    """The steps with which the demo upstream of `./dev up` answers."""
    answer = reply_to({**request.body, "model": DEMO_MODELS[request.model]})
    steps = (
        [call(0, answer.call.id, answer.call.name, answer.call.arguments)]
        if answer.call
        else [text(*answer.words)]
    )
    return [*steps, finish(answer.finish_reason), usage(), done()]
