"""Schedules: background responses that are made at given times (docs/background.md)."""
