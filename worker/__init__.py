"""The workers: claim responses, run them against upstreams, store and publish their events."""
