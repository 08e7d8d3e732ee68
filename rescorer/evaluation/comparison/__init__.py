"""Comparison of systems on the same lists: the first pass, models alone, mixtures, tuned weights.

Lists and a rescorer come in; scored lists, and one report per system, come out.
"""
