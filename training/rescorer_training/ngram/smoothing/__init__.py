"""Smoothing: divide the probability of each context between the words that followed it and all others.

Counts of n-grams come in; the probabilities and back-off weights of a model go out.
"""
