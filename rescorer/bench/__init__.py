"""Benchmarks of scoring, phase by phase and compared with plain baselines, and of a server under load.

Lists and a bundle come in, or the sizes of random lists and models. Reports with figures and ratios go out.
"""
