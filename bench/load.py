"""How large the load of a run is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Sizes, rates and times; the defaults are those of a full run."""

    samples: int = 400
    """requests whose latency is measured, one after another"""
    responses: int = 1500
    """short responses whose rate and CPU time are measured"""
    seconds: float = 8.0
    """how long a rate or a lag is measured"""
    concurrency: int = 32
    """requests at a time"""
    streams: tuple[int, ...] = (300, 800)
    """streams that are posted at once"""
    lag_streams: tuple[int, ...] = (200, 500)
    """streams whose lag is measured"""
    rates: tuple[int, ...] = (4500, 8000)
    """deltas a second of all streams together"""
    jobs: int = 1000
    """background responses that are waited for"""
    job_seconds: int = 20
    """how long the upstream takes for one of them"""
    held_streams: int = 1000
    """streams whose memory is measured, and of the worker that is killed"""
    rounds: int = 3
    """kills of each kind"""
    kills_webs: bool = True
    """whether also web processes are killed, and half of all processes"""


FULL = Load()
QUICK = Load(
    samples=80,
    responses=300,
    seconds=2.5,
    job_seconds=5,
    held_streams=300,
    rounds=1,
    kills_webs=False,
)
"""Fewer samples; jobs are shorter, fewer streams are held, and only workers are killed."""
