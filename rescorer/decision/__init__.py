"""Decide among the scored hypotheses of a list, by minimum Bayes risk or consensus, and say how sure to be.

Totals of a list and its canonical words come in; an order, expected errors, a consensus or confidences go
out. Everything here is arithmetic on arrays: it needs neither models nor SciPy.
"""
