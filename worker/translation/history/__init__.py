"""A history before it goes to a model: measured, truncated, summed up. Pure."""
