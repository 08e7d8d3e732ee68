"""Metrics, logs, traces and timings; nothing here depends on the queues and workers that are measured."""
