"""A short campaign of random faults, and the rounds of earlier violations."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from tests.chaos.campaign.campaign import SHORTENED, Campaign
from tests.chaos.campaign.errands.plan import ErrandKind
from tests.chaos.campaign.figures import RoundFigures, StateFile
from tests.chaos.campaign.plan import DEFAULT, DENSE, ClientKind, FaultAction, monkey, plan
from tests.chaos.campaign.round import broken_round
from tests.chaos.campaign.seeds import SEEDS_FILE, Seed, append_seed, read_seeds
from tests.chaos.campaign.table import CampaignTotals

SEEDS = [1]


def test_a_seed_always_makes_the_same_plan() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)
    assert plan(7, DEFAULT).faults != plan(7).faults
    assert monkey(7, 1) == monkey(7, 1)


def test_plans_use_every_fault() -> None:
    plans = [plan(seed) for seed in range(50)]
    dense = [plan(seed, replace(DENSE, clients=0)) for seed in range(200)]
    actions = {fault.action for round_plan in dense for fault in round_plan.faults}
    assert actions == set(get_args(FaultAction))
    assert {client.upstream_fault for round_plan in plans for client in round_plan.clients} == {
        "none",
        "reset",
        "drop",
        "refused first",
        "hang",
    }


def test_plans_use_every_kind_of_client() -> None:
    clients = [client for seed in range(50) for client in plan(seed).clients]
    assert {client.kind for client in clients} == set(get_args(ClientKind))
    assert len({tool for client in clients for turn in client.tools for tool in turn}) == 3
    for feature in ("is_native", "compacts", "cancel", "delete", "readers", "is_background"):
        assert {bool(getattr(client, feature)) for client in clients} == {True, False}, feature


def test_each_round_has_every_errand_and_some_rounds_have_every_variant() -> None:
    plans = [plan(seed, replace(DENSE, clients=0)) for seed in range(20)]
    crowded = [one for one in plans if one.is_crowded]
    assert len(crowded) == 2
    plans = [one for one in plans if one not in crowded]
    for one in plans:
        assert {errand.kind for errand in one.errands} == set(get_args(ErrandKind))
    errands = [errand for one in plans for errand in one.errands]
    assert {errand.retry for errand in errands} == {"none", "key", "sdk"}
    for feature in ("loses_reply", "delete", "is_deleted_at_end"):
        assert {bool(getattr(errand, feature)) for errand in errands} == {True, False}, feature


def test_a_failed_seed_is_kept_once_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    append_seed(file, Seed(7, ""), "I4 resp_1: a hole · evidence")
    append_seed(file, Seed(7, "defaults"), "I2 resp_1: it has not ended: #1")
    append_seed(file, Seed(7, ""), "another one")
    assert file.read_text().splitlines() == [
        "7: I4 resp_1: a hole",
        "7 defaults: I2 resp_1: it has not ended: number 1",
    ]
    assert read_seeds(file) == [Seed(7, ""), Seed(7, "defaults")]


def test_a_campaign_continues_after_the_last_round_that_was_written_completely(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.jsonl"
    state = StateFile(path, "")
    assert state.next_seed is None
    for seed in (3, 4):
        state.append(RoundFigures.of(broken_round(plan(seed), "it broke"), ""))
    written = path.read_text()
    path.write_text(written + '{"seed": 5, "opt')
    continued = StateFile(path, "")
    assert continued.next_seed == 5
    assert continued.rounds == state.rounds
    assert path.read_text() == written
    totals = CampaignTotals()
    for figures in continued.rounds:
        totals.add(figures)
    assert (totals.rounds, len(totals.violations)) == (2, 2)
    with pytest.raises(ValueError, match="other options"):
        StateFile(path, "defaults")


@pytest.mark.timeout(600)  # less than a minute on an idle machine
async def test_a_short_campaign_has_no_violations(tmp_path: Path) -> None:
    kept = [seed.number for seed in read_seeds(SEEDS_FILE) if not seed.options]
    plans = [*map(plan, SEEDS), *(plan(seed, DENSE) for seed in kept)]
    campaign = Campaign(SHORTENED, end_timeout=60, keep=tmp_path / "failed")
    outcomes = [outcome async for outcome in campaign.run(plans)]
    assert [outcome.plan.seed for outcome in outcomes] == [round_plan.seed for round_plan in plans]
    violations = [
        f"seed {outcome.plan.seed}: {violation}"
        for outcome in outcomes
        for violation in outcome.report.violations
    ]
    assert not violations, "\n".join(violations)
    assert sum(outcome.report.responses for outcome in outcomes) > 20 * len(plans)
    assert all(outcome.faults for outcome in outcomes)
    assert any(outcome.record.tools for outcome in outcomes)
    totals = CampaignTotals()
    for outcome in outcomes:
        totals.add(RoundFigures.of(outcome, ""))
    assert len(totals.kinds) == 5, totals.kinds
    made = ("file", "batch", "line of a batch", "chunk", "search", "proxied", "webhook")
    assert all(totals.objects[name] for name in made), totals.objects
