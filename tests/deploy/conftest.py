"""Tests with a real Docker engine: they are skipped where there is none."""

import pytest

from tests.deploy.engine import missing_engine


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test marked `docker` if no engine answers."""
    if item.get_closest_marker("docker") is not None and (missing := missing_engine()):
        pytest.skip(missing)
