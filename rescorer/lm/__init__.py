"""Language models: tries in, log-probabilities out."""

CONTEXT_CACHE_BYTES = 4 * 1024 * 1024
"""Of a network, unless it is made otherwise: 1,200 contexts of an LSTM at hidden size 200, 600 at 512."""
