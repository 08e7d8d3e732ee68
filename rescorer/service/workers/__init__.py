"""Processes that hold the models, and their protocol: the server sends a trie of words, and a worker returns
the scores of its edges."""
