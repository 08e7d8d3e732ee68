"""Analysis of errors: aligned texts, confusions, what rescoring fixed and broke, and error rates of parts.

Words of references and hypotheses, or error counts, come in; counts and small tables come out.
"""
