"""Rerankers: small models that are trained to score the hypotheses of a list by features of the whole list.

In come the components of a list (streams, language model scores, counts) and its words; out goes one score
per hypothesis, which is a component like any other. Nothing here needs torch or KenLM.
"""
