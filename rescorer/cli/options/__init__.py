"""Options that several commands share, and what their values mean; those of one kind of command in folders.

Text from the command line comes in; readers of lists, weights and settings come out.
"""
