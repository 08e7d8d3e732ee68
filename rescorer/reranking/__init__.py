"""Rerankers: small models that are trained to score the hypotheses of a list by features of the whole list.

The components of a list (streams, scores of language models, counts) and its words come in; one score per
hypothesis goes out, which is a component like any other. Nothing here needs torch or KenLM.
"""
