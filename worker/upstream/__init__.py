"""Everything about the far side: connections, limits, vendors' oddities."""
