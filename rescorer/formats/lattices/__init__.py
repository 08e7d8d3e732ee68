"""Read lattices as n-best lists by exact search, and write lists as lattices in the shape of prefix trees.

HTK (SLF) and Kaldi files come in; the best distinct word sequences of each lattice go out.
"""
