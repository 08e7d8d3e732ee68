"""Observe a server under test: its log, processes, and use of memory, file descriptors and threads."""
