"""Who gets what there is not enough of: turns, and a reserve for those who have nothing."""
