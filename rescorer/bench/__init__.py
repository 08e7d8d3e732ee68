"""Benchmarks of scoring, phase by phase and compared with plain baselines, and of a server under load.

Lists and a bundle come in, or the sizes of random ones; reports with figures and ratios go out.
"""
