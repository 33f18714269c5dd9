"""The groups of settings for prices: what models cost, and the factors of tiers and windows.

The text below each setting is its meaning in `docs/settings.md`.
"""

from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from models.config.values import Group

Price = Annotated[Decimal, Field(ge=0, le=1_000_000_000, decimal_places=9)]
"""An amount of the currency. A number of the file is read as it is written, without rounding."""
Factor = Annotated[Decimal, Field(ge=0, le=100, decimal_places=6)]


class ModelPrice(Group):
    """What one model costs. Tokens are priced by the million."""

    input: Price | None = None
    """Of a million input tokens."""
    cached_input: Price | None = None
    """Of a million of those input tokens that the upstream had in its cache. Unset: as `input`."""
    output: Price | None = None
    """Of a million output tokens, reasoning among them."""
    request: Price | None = None
    """Of one request of the model."""
    unit: Price | None = None
    """Of one image, character of speech or second of audio."""
    flex: Factor | None = None
    """In place of `prices.flex`; the same for the next four."""
    priority: Factor | None = None
    window_2h: Factor | None = None
    window_8h: Factor | None = None
    batch: Factor | None = None


def _check_patterns(prices: dict[str, ModelPrice]) -> dict[str, ModelPrice]:
    if "" in prices:
        raise ValueError("must be a model name or a pattern with *")
    return prices


ModelPrices = Annotated[dict[str, ModelPrice], AfterValidator(_check_patterns)]
"""Prices by a model's name as clients write it, or by a pattern with `*`, as in routes."""


class PriceSettings(Group):
    """What models cost, for reports of usage (docs/projects.md, "Costs"). Nothing else depends on
    it."""

    currency: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{1,12}$")] = "USD"
    """The currency of all prices. Nothing is converted."""
    models: ModelPrices = {}
    """Prices by model name or pattern."""
    flex: Factor = Decimal(1)
    """The factor for `service_tier: flex`."""
    priority: Factor = Decimal(1)
    """The factor for `service_tier: priority`."""
    window_2h: Factor = Decimal(1)
    """The factor for `completion_window: 2h`."""
    window_8h: Factor = Decimal(1)
    """The factor for `completion_window: 8h`."""
    batch: Factor = Decimal(1)
    """The factor for requests in batches."""

    def factor_of(self, window: str | None) -> float:
        """The factor of a window, for people; None: without one."""
        factors = {"2h": self.window_2h, "8h": self.window_8h, "batch": self.batch}
        return float(factors.get(window or "", 1))
