"""Gauges of this process, read at a scrape of `/metrics`."""

from prometheus_client import Gauge

from web.counters import POOL, REGISTRY
from web.state import AppState

READERS = Gauge(
    "backburner_readers",
    "Streams and waiting requests that this process serves from a response's log.",
    registry=REGISTRY,
)
BODY_BYTES = Gauge(
    "backburner_body_bytes",
    "Bytes of the larger request bodies that this process reads and checks now.",
    registry=REGISTRY,
)
BUS_HEALTHY = Gauge(
    "backburner_bus_healthy",
    "1 while Redis delivers live events to this process; 0: readers are served from Postgres.",
    registry=REGISTRY,
)
LEASE_AGE = Gauge(
    "backburner_lease_age_seconds",
    "Seconds since this process's lease was last renewed.",
    registry=REGISTRY,
)


def bind(state: AppState) -> None:
    """Makes the gauges read this state."""
    POOL.pool = state.pool
    READERS.set_function(lambda: state.bus.readers)
    BODY_BYTES.set_function(lambda: state.budgets.bodies.used)
    BUS_HEALTHY.set_function(lambda: float(state.bus.healthy))
    LEASE_AGE.set_function(lambda: state.lease.age)
