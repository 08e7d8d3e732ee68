"""Options that several commands share, and what their values mean.

Text from the command line comes in; readers of lists, weights and settings come out.
"""
