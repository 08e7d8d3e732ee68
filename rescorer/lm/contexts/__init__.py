"""What networks keep of the words before an edge, and read again.

Contexts come in; cached states and vectors, distinct n-gram contexts and counts of what was recalled go out.
"""
