"""Search for the weights with the fewest errors, and compare systems on the same lists.

Lists with references are scored once; weights, cross-validated errors and comparison reports come out.
"""
