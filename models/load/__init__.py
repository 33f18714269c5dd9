"""Admission and backpressure of one process: fair queues of permits, and budgets of bytes."""
