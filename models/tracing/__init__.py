"""Traces by OpenTelemetry (docs/operations.md, "Traces")."""
