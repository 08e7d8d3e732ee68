"""Language models: they take a trie of hypotheses and return the log-probability of each edge."""

CONTEXT_CACHE_BYTES = 4 * 1024 * 1024
"""Default size of a network's context cache: 1,200 contexts of an LSTM at hidden size 200, 600 at 512."""
