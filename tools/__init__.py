"""Tests under stress, run as ``python -m tools``, and what makes releases; not part of the wheel."""
