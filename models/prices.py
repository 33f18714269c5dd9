"""What a request costs: its tokens at the prices of the settings, exact to a billionth.

Pure. A cost is a whole number of billionths of the currency (`BILLIONTHS`), so sums are exact. It
is decided once, when the request has ended, and stored: later prices change no earlier cost. None
is a cost that is not known: the model has no price, or the upstream did not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from models.config.prices import ModelPrice, ModelPrices, PriceSettings
from models.config.routes import RoutingSettings, by_precedence, pattern_expression
from models.windows import CompletionWindow
from models.wire.token_counts import COUNTED_BY

BILLIONTHS = 1_000_000_000
"""Of a unit of the currency: what a cost of 1.00 is stored as."""
_LARGEST = 2**61
"""As sums of usage (models/db/queries/common.py)."""
_MILLION = Decimal(1_000_000)
_EXACT = Context(prec=80)
"""More digits than a product of counts, prices and factors can have."""


@dataclass(frozen=True, slots=True)
class UsedAmounts:
    """What a request has used."""

    requests: int = 1
    """calls of the model"""
    input_tokens: int = 0
    cached_tokens: int = 0
    """of the input"""
    output_tokens: int = 0
    units: int = 0
    """images, characters of speech, or seconds of audio"""
    has_tokens: bool = True
    """The upstream has counted tokens. False: their number is not known."""


class PriceList:
    """The prices of a process."""

    def __init__(self, prices: PriceSettings, routing: RoutingSettings) -> None:
        self._settings = prices
        self._common = _PriceTable(prices.models)
        named = {"default": routing.upstream, **routing.upstreams}
        self._of_upstreams = {
            name: _PriceTable(upstream.prices) for name, upstream in named.items()
        }

    @property
    def is_empty(self) -> bool:
        """No model has a price."""
        return not any(table.prices for table in (self._common, *self._of_upstreams.values()))

    def price_of(self, model: str, upstream: str | None) -> ModelPrice | None:
        """The price of a model, as clients name it, at an upstream: the upstream's own, else the
        common one."""
        own = self._of_upstreams.get(upstream or "")
        price = None if own is None else own.find(model)
        return self._common.find(model) if price is None else price

    def cost(
        self,
        model: str,
        upstream: str | None,
        used: UsedAmounts,
        *,
        tier: str | None = None,
        window: CompletionWindow | None = None,
    ) -> int | None:
        """The cost in billionths of the currency; None: not known. `tier`: the service tier.
        `window`: it counts in place of the tier."""
        if used.requests == 0:
            return 0
        price = self.price_of(model, upstream)
        if price is None:
            return None
        amount = _amount(price, used)
        if amount is None:
            return None
        factor = self._factor(price, tier, window)
        cost = _EXACT.multiply(_EXACT.multiply(amount, factor), Decimal(BILLIONTHS))
        return min(int(cost.to_integral_value(ROUND_HALF_UP, _EXACT)), _LARGEST)

    def _factor(
        self, price: ModelPrice, tier: str | None, window: CompletionWindow | None
    ) -> Decimal:
        match window, tier:
            case CompletionWindow.BATCH, _:
                name = "batch"
            case CompletionWindow.TWO_HOURS, _:
                name = "window_2h"
            case CompletionWindow.EIGHT_HOURS, _:
                name = "window_8h"
            case _, "flex" | "priority":
                name = str(tier)
            case _:
                return Decimal(1)
        own: Decimal | None = getattr(price, name)
        common: Decimal = getattr(self._settings, name)
        return common if own is None else own


class _PriceTable:
    """Prices by pattern; the pattern that wins is chosen as that of a route is."""

    def __init__(self, prices: ModelPrices) -> None:
        self.prices = prices
        self._wildcards = [
            (pattern_expression(pattern), prices[pattern])
            for pattern in by_precedence(prices)
            if "*" in pattern
        ]

    def find(self, model: str) -> ModelPrice | None:
        exact = self.prices.get(model)
        if exact is not None:
            return exact
        return next((price for each, price in self._wildcards if each.fullmatch(model)), None)


def _amount(price: ModelPrice, used: UsedAmounts) -> Decimal | None:
    """The amount without factors; None: a part of it is not known."""
    cached_price = price.input if price.cached_input is None else price.cached_input
    by_token = (
        (max(0, used.input_tokens - used.cached_tokens), price.input),
        (used.cached_tokens, cached_price),
        (used.output_tokens, price.output),
    )
    by_count = ((used.requests, price.request), (used.units, price.unit))
    prices = [each for _, each in (*by_token, *by_count)]
    if not any(each is not None for each in prices):
        return None
    if not used.has_tokens and any(each for _, each in by_token):
        return None
    counts_tokens = any(each is not None for _, each in by_token)
    amount = Decimal(0)
    for count, each in by_count:
        amount = _EXACT.add(amount, _EXACT.multiply(Decimal(count), each or Decimal(0)))
    for count, each in by_token:
        if count and each is None and counts_tokens:
            return None
        tokens = _EXACT.multiply(Decimal(count), each or Decimal(0))
        amount = _EXACT.add(amount, _EXACT.divide(tokens, _MILLION))
    return amount


def response_amounts(usage: Mapping[str, Any] | None, turns: int) -> UsedAmounts:
    """What a response has used. `usage`: as it is stored. `turns`: its calls of the model."""
    if usage is None:
        return UsedAmounts(requests=turns, has_tokens=False)
    if COUNTED_BY in usage:
        return UsedAmounts(requests=0)
    details = usage.get("input_tokens_details") or {}
    return UsedAmounts(
        requests=turns,
        input_tokens=usage.get("input_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
        output_tokens=usage.get("output_tokens") or 0,
    )


def exact_cost(cost: int) -> str:
    """A cost as a decimal number with all its digits, for programs: `0.0125`."""
    text = f"{Decimal(cost).scaleb(-9):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def shown_cost(cost: int) -> str:
    """A cost for people, without the currency: two decimals and narrow spaces between thousands, or
    three digits below 1."""
    value = Decimal(cost).scaleb(-9)
    if value >= 1:
        return f"{value:,.2f}".replace(",", "\u202f")
    if cost == 0:
        return "0"
    text = f"{Context(prec=3, rounding=ROUND_HALF_UP).plus(value):f}"
    return text.rstrip("0").rstrip(".")
