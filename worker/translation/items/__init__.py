"""The items of a turn, from the first event to the last. Pure."""
