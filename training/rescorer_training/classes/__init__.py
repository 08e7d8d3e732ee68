"""Group words for factored output layers, and read pretrained word vectors.

Encoded text or word vectors go in; word classes, binary trees of words and initialised embeddings come out.
"""
