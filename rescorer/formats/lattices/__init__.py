"""Read lattices as n-best lists by exact search, and write lists as lattices in the shape of prefix trees.

The formats are HTK (SLF) and Kaldi. A lattice is read as the list of its best distinct word sequences.
"""
