"""Who runs a response: the lease of a process, and the claims it makes under that lease."""
