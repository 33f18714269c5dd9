"""What a request costs, exactly, and when nobody knows it."""

from pathlib import Path
from typing import Any

import pytest

from models.config.config_file import BadSettings
from models.config.configuration import build
from models.config.prices import PriceSettings
from models.config.settings import Settings
from models.prices import PriceList, UsedAmounts, exact_cost, response_amounts, shown_cost
from models.windows import CompletionWindow
from models.wire.token_counts import COUNTED_BY

_PRICES: dict[str, Any] = {
    "models": {
        "gpt-5": {"input": "1.25", "cached_input": "0.125", "output": 10},
        "gpt-*": {"input": 3, "output": 4, "batch": "0.25"},
        "gpt-5-*": {"input": 0.1, "output": 0.3},
        "embed": {"input": "0.02"},
        "cheap": {"input": "0.001"},
        "painter": {"unit": "0.04", "request": "0.001"},
        "free": {"input": 0, "output": 0},
    },
    "flex": "0.5",
    "window_8h": "0.4",
    "batch": "0.5",
}
_USED = UsedAmounts(input_tokens=1_000, cached_tokens=400, output_tokens=30)


def _list(**upstream_prices: Any) -> PriceList:
    upstreams = {
        name: {"base_url": "http://127.0.0.1:1/v1", "prices": prices}
        for name, prices in {"one": {}, **upstream_prices}.items()
    }
    settings = Settings(
        database_url="postgresql://x",
        redis_url="redis://x",
        upstreams=upstreams,
        routes={"*": "one"},
        prices=PriceSettings(**_PRICES),
    )
    return PriceList(settings.prices, settings)


@pytest.mark.parametrize(
    ("model", "used", "options", "cost"),
    [
        # 600 x 1.25 + 400 x 0.125 + 30 x 10, of a million: 0.0011
        ("gpt-5", _USED, {}, 1_100_000),
        ("gpt-5", _USED, {"tier": "flex"}, 550_000),
        ("gpt-5", _USED, {"tier": "default"}, 1_100_000),
        ("gpt-5", _USED, {"tier": "flex", "window": CompletionWindow.EIGHT_HOURS}, 440_000),
        ("gpt-5", _USED, {"tier": "flex", "window": CompletionWindow.TWO_HOURS}, 1_100_000),
        ("gpt-5", _USED, {"window": CompletionWindow.BATCH}, 550_000),
        # the longest pattern that fits, without a price for cached tokens
        ("gpt-5-mini", _USED, {}, 109_000),
        ("gpt-4", _USED, {"window": CompletionWindow.BATCH}, 780_000),
        # numbers that are no binary fractions: 3 x 0.1 + 0.3 of a million
        ("gpt-5-mini", UsedAmounts(input_tokens=3, output_tokens=1), {}, 600),
        # half of a billionth is rounded up
        ("cheap", UsedAmounts(input_tokens=1), {"window": CompletionWindow.BATCH}, 1),
        ("painter", UsedAmounts(units=3, has_tokens=False), {}, 121_000_000),
        ("painter", UsedAmounts(units=1, input_tokens=99, output_tokens=99), {}, 41_000_000),
        ("free", _USED, {}, 0),
        ("free", UsedAmounts(has_tokens=False), {}, 0),
        ("unpriced", UsedAmounts(requests=0), {}, 0),
        ("gpt-5", UsedAmounts(input_tokens=2**53), {}, 2**61),
    ],
)
def test_a_cost_is_exact(model: str, used: UsedAmounts, options: dict[str, Any], cost: int) -> None:
    assert _list().cost(model, "one", used, **options) == cost


@pytest.mark.parametrize(
    ("model", "used"),
    [
        ("unpriced", _USED),
        ("gpt-5", UsedAmounts(has_tokens=False)),
        ("gpt-5", response_amounts(None, turns=1)),
        ("embed", UsedAmounts(input_tokens=1, output_tokens=1)),
    ],
)
def test_what_is_not_known_is_not_zero(model: str, used: UsedAmounts) -> None:
    assert _list().cost(model, "one", used) is None


def test_an_upstream_has_prices_of_its_own() -> None:
    prices = _list(two={"gpt-*": {"input": 1, "output": 1}})
    costs = [prices.cost("gpt-5", name, _USED) for name in ("one", "two", "gone", None)]
    assert costs == [1_100_000, 1_030_000, 1_100_000, 1_100_000]


def test_counted_tokens_and_answers_without_a_call_cost_nothing() -> None:
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 2,
    }
    assert response_amounts(usage, 3) == UsedAmounts(3, 9, 4, 2)
    for amounts in (response_amounts(usage, 0), response_amounts({COUNTED_BY: "tokenizer"}, 1)):
        assert _list().cost("gpt-5", "one", amounts) == 0


def test_costs_are_written_without_loss_for_programs_and_short_for_people() -> None:
    costs = (0, 1, 1_100_000, 25_000_000, 1_000_000_000, 1_234_567_891_000_000)
    exact = ["0", "0.000000001", "0.0011", "0.025", "1", "1234567.891"]
    assert [exact_cost(cost) for cost in costs] == exact
    shown = ["0", "0.000000001", "0.0011", "0.025", "1.00", "1\u202f234\u202f567.89"]
    assert [shown_cost(cost) for cost in costs] == shown
    assert shown_cost(123_456_789) == "0.123"


def test_prices_of_the_file_are_read_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "backburner.toml"
    file.write_text('[prices.models."gpt-5"]\ninput = 0.1\noutput = 0.3\n')
    monkeypatch.setenv("BACKBURNER_CONFIG", str(file))
    monkeypatch.setenv("DATABASE_URL", "postgresql://x")
    monkeypatch.setenv("REDIS_URL", "redis://x")
    settings = build()
    used = UsedAmounts(input_tokens=3, output_tokens=1)
    assert PriceList(settings.prices, settings).cost("gpt-5", None, used) == 600
    monkeypatch.setenv("BACKBURNER_PRICES__MODELS", '{"*": {"input": -1}}')
    with pytest.raises(BadSettings, match="greater than or equal to 0"):
        build()
