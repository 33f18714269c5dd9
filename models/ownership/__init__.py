"""Who runs a response: the lease of a process, and its claims while the lease is valid."""
