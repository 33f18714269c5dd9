"""Which quotas hold for a project."""

from models.config.groups import QuotaSettings
from models.projects.quotas import ASSUMED_OUTPUT, Limits, ProjectQuotas, estimate_tokens


def test_a_project_has_its_own_quota_or_that_of_the_settings() -> None:
    defaults = QuotaSettings(running=10, queued=5)
    assert Limits.of(QuotaSettings(), ProjectQuotas()) is None
    assert Limits.of(QuotaSettings(running=0), ProjectQuotas()) is None
    assert Limits.of(defaults, ProjectQuotas()) == Limits(running=10, queued=5)
    assert Limits.of(defaults, ProjectQuotas(running=2)) == Limits(running=2, queued=5)
    assert Limits.of(defaults, ProjectQuotas(running=0, queued=0)) is None, "0 lifts a default"


def test_a_share_is_never_nothing() -> None:
    share = Limits(requests_per_minute=5, open_sockets=1, tokens_per_day=10).share(4)
    assert share == Limits(requests_per_minute=2, open_sockets=1, tokens_per_day=10)


def test_an_estimate_counts_characters_and_the_output_that_is_possible() -> None:
    limits = Limits(tokens_per_minute=100_000)
    assert estimate_tokens(401, 50, limits) == 151
    assert estimate_tokens(400, None, limits) == 100 + ASSUMED_OUTPUT
    assert estimate_tokens(400, None, Limits(tokens_per_minute=500)) == 500
    assert estimate_tokens(4000, None, Limits(tokens_per_minute=500)) == 1000, "it never fits"
    assert estimate_tokens(400, None, Limits(tokens_per_day=5)) == 100 + ASSUMED_OUTPUT
