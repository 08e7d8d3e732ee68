"""Search for weights on arrays that know nothing of lists.

Components and errors of hypotheses come in; weights with few errors, under a method, come out.
"""
