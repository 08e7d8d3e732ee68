"""Search for the request that costs a server most memory or time among those that its limits allow.

Shapes of requests come in (numbers of lists, hypotheses, words, streams, names and phrases); the ones whose
handling takes most memory, or most time for their size, go out, and can be sent to a server to see what it
needs.
"""
