"""PostgreSQL and Valkey from wheels, supervised by us (docs/adr/0001)."""
