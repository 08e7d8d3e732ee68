"""Benchmarks: of scoring, phase by phase next to plain baselines, and of a server under load.

Lists and a bundle, or the options of made ones, come in; reports with figures and ratios go out.
"""
