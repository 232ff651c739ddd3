"""Observability: metrics, logs and traces of the service."""
