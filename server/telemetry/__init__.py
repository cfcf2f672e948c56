"""Telemetry: logs, metrics, traces and the log line of each request."""
