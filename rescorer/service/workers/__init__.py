"""Processes that own the models, and the protocol by which the server asks them for scores."""
