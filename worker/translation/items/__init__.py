"""The items of a turn, from their first event to their last. Pure."""
