"""Buckets of durations, for the plots of the console."""
