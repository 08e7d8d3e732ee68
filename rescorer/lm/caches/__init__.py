"""Caches of sessions: language models of what was said before a list, with which a mixture is interpolated.

Earlier words, or a network's vectors of them, come in; probabilities of each edge go out.
"""
