"""The parts that the commands of ``rescorer`` and ``rescorer-train`` share: programs, options and tables.

A command line comes in; checked options go out, with functions that read lists and load models as the options
say. Results come back as plain data, and are printed as tables that remain readable on narrow terminals.
"""
