"""Vector stores, as clients see them."""
