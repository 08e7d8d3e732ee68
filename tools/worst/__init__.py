"""Search for the request that costs a server most memory or time among those that its limits allow.

Shapes of requests come in (numbers of lists, hypotheses, words, streams and names); the ones whose handling
takes most memory go out, and can be sent to a server to see what it needs.
"""
