"""What the commands of ``rescorer`` and ``rescorer-train`` share: programs, options and tables.

Words of a command line come in; checked options, and functions that read lists and load models by them, go
out. Results come back as plain data and are printed as tables that remain readable on narrow terminals.
"""
