"""Stress tests, run as ``python -m tools``, and programs that make releases; not part of the wheel."""
