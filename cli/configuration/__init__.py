"""The commands that check a configuration and an upstream."""
