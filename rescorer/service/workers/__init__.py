"""Processes that hold the models, and the protocol in which the server sends them tries and receives
scores."""
