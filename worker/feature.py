"""What a feature adds to a worker (models/features.py)."""

from worker.run.resources import Resources


class Feature:
    """What a feature has open in a worker process: the `FEATURE` of its `worker.py`."""

    def __init__(self, resources: Resources) -> None:
        """May add tools to those of the process."""
        self.resources = resources

    def start(self) -> None:
        """Starts its tasks, but not in a quarantine worker, which may crash at any time."""

    async def close(self) -> None:
        """Closes its connections. Its tasks have ended before."""
