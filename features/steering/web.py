"""Steering in a web process."""

from features.steering.steer_store import SteerStore
from web.state import AppState, Feature


class Steering(Feature):
    """The steers of all responses."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.store = SteerStore(state)


FEATURE = Steering
