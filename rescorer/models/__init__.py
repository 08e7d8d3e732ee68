"""Language models: they take a trie of hypotheses and return the log-probability of each edge.

A model's files and a trie come in; log-probabilities in nats, and which words are unknown, go out.
"""

CONTEXT_CACHE_BYTES = 4 * 1024 * 1024
"""Default size of a network's context cache: enough for 1,200 contexts of an LSTM with hidden size 200, or
for 600 with hidden size 512."""
