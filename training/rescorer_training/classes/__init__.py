"""Group words for factored output layers and tree softmaxes.

Encoded text or word vectors go in; word classes and binary trees of words come out.
"""
