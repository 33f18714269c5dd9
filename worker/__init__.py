"""The workers: claim responses, run them against upstreams, write what happened."""
