"""The puppet, under the names that clients' programs call it by."""

import pytest

from tests.clients.puppet import puppet
from tests.fake_upstream import FakeUpstream

NAMES = ("puppet", "gpt-4.1-mini", "gpt-5.5", "gpt-6.1-sol")
"""LlamaIndex and Codex look names up, and do more for those they know."""


@pytest.fixture(autouse=True, scope="session")
def puppets(fake: FakeUpstream) -> None:
    """Hold these models ready."""
    for name in NAMES:
        fake.decide(name, puppet)
