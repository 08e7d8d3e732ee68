"""Listening sockets, TLS, addresses and the file of clients."""
