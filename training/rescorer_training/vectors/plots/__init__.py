"""Draw word vectors as points of a plane.

Vectors and a choice of words come in; a PNG, or one HTML page that needs no network, goes out.
"""
