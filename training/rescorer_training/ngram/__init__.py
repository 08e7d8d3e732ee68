"""Estimate, prune, interpolate and write back-off n-gram models."""
