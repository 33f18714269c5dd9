"""Which names of models and projects become labels of metrics."""

from models.config.groups import LimitSettings, MetricsSettings
from models.metrics import SECOND_BUCKETS
from worker.run.model_metrics import Labels


def test_a_model_is_a_label_only_if_it_is_routed_or_was_answered() -> None:
    labels = Labels()
    labels.configure(MetricsSettings(models=2), {"routed", "*"})
    assert [labels.model(name) for name in ("routed", "typo")] == ["routed", "other"]
    assert labels.answered_model("first") == labels.model("first") == "first"


def test_the_number_of_models_is_bounded() -> None:
    labels = Labels()
    labels.configure(MetricsSettings(models=2), ["routed"])
    shown = [labels.answered_model(name) for name in ("a", "routed", "b", "c", "a")]
    assert shown == ["a", "routed", "b", "other", "a"]
    assert labels.model("c") == "other"


def test_projects_are_labels_only_on_request_and_their_number_is_bounded() -> None:
    labels = Labels()
    labels.configure(MetricsSettings(), ())
    assert labels.project("p") is None
    labels.configure(MetricsSettings(projects=True), ())
    shown = [labels.project(str(number)) for number in range(1001)]
    assert shown == [*map(str, range(1000)), "other"]


def test_the_buckets_reach_the_limits() -> None:
    limits = LimitSettings()
    longest = (limits.queue_wait, limits.wall_clock, limits.turn, limits.first_token)
    assert {limit.total_seconds() for limit in longest} <= set(SECOND_BUCKETS)
