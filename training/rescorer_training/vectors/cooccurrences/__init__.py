"""Count how often words occur near each other, out of core.

An encoded text comes in; a file of cells (word, word, weight) goes out. Memory is bounded: blocks of the text
are counted one by one into sorted runs on disk, which are merged.
"""
