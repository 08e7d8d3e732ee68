"""Read and write n-best list formats, one module per format.

Readers take a file or folder and yield lists, with an error in place of each list that cannot be read.
Writers take lists, and raise an error for those that the format cannot hold.
"""
