"""Estimate, prune, interpolate and write back-off n-gram models.

Text files or ARPA files go in; ARPA files or KenLM binaries, and summaries of the models, come out.
"""
