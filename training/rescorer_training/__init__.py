"""Train the language models that ``rescorer`` serves.

Text goes in; n-gram models, neural networks and verified bundles come out.
"""
