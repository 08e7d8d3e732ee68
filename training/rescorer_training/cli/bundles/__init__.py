"""Commands that make bundles: from models, or from a bundle and the text of a domain.

A new bundle comes out, with a table of perplexities.
"""
