"""Intervals and tests that tell a difference between systems from chance.

Errors per list and system come in as arrays, intervals, p-values and powers come out; nothing here reads or
prints lists.
"""
