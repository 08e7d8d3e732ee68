"""Adapt a bundle to a domain by text alone.

A bundle and a text come in; a new bundle comes out, with perplexities and error rates before and after.
"""
