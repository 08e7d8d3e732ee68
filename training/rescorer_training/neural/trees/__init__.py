"""Build trees of words for tree softmax from the contexts of a trained network.

Takes a network and encoded text; leaves the vector of each word and a tree of words.
"""
