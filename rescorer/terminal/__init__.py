"""The parts that the commands of ``rescorer`` and ``rescorer-train`` share: programs, options and tables.

A command line comes in. Checked options go out, with functions that read lists and load models as these
options say. The results of commands are printed here, as tables that remain readable on narrow terminals.
"""
