"""Tests of the service under stress, run as ``python -m tools``; not part of the wheel."""
