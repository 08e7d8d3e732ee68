"""Metrics, logs, traces and timings; they take numbers and know nothing of queues."""
