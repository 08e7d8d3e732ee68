"""Measure what phrases gain, and what they cost where they were not said.

Published outputs of recognisers and n-best lists come in; error rates of phrases and of other words, and
numbers of lists that phrases make worse, go out, for the documentation.
"""
