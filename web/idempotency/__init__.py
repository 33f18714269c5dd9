"""A create that a client sends again makes nothing twice (docs/wire.md, "Repeated creates")."""
