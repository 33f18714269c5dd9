"""A history on its way to a model: walked, measured, truncated, summarised. Pure."""
