"""Search for the weights with the fewest errors, and compare systems on the same lists.

Scored lists with references come in; weights, cross-validated errors and comparison reports come out.
"""
