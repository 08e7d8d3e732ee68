"""Word vectors: their files, their training, and ways to judge and look at them.

Text, networks or files of vectors come in; files of vectors, tables of measurements and pictures come out.
"""
